-- Removes claims from their queues, and notifies those that hold now.
--
-- KEYS[i]  the lock        ARGV[i]  the claim's id
--
-- 1, when each of them was the only one of its queue; otherwise an answer to each:
--   1 it was removed    2 it was not there, others are, or the key is not lockkit's    3 the queue is empty
--   an error of this claim only
local call, safecall, rest = redis.call, redis.pcall, nil
for i = 1, #ARGV do
  if safecall('GETRANGE', KEYS[i], '20', '51') == ARGV[i] then
    call('DEL', KEYS[i])
  else
    rest = rest or {}
    rest[#rest + 1] = i
  end
end
if not rest then return 1 end

local clock = call('TIME')

-- #include queue.lua

local function release(i)
  local queue = find(KEYS[i])
  if not queue or queue.kind == 'string' then return 2 end
  if queue.kind == 'none' then return 3 end
  write_first(queue)
  open(queue)
  local removed = remove(queue, ARGV[i])
  if removed then promote(queue) end
  local left = redis.call('ZCARD', queue.claims)
  close(queue)
  return removed and 1 or (left > 0 and 2 or 3)
end

local answers = {}
for i = 1, #ARGV do answers[i] = 1 end
for _, i in ipairs(rest) do answers[i] = attempt(release, i) end
return speak(refused or answers)
