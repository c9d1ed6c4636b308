-- Takes claims out of their lists, and wakes those who now hold.
--
-- KEYS[i]  the lock        ARGV[i]  the claim's id
--
-- 1, when each of them was alone in its list; otherwise an answer to each:
--   1 it was in line    2 it was not, others are, or the key is not lockkit's    3 nobody is in line
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

-- #include line.lua

local function release(i)
  local list = find(KEYS[i])
  if not list or list.kind == 'string' then return 2 end
  if list.kind == 'none' then return 3 end
  insist(list)
  open(list)
  local removed = remove(list, ARGV[i])
  if removed then promote(list) end
  local left = redis.call('ZCARD', list.line)
  close(list)
  return removed and 1 or (left > 0 and 2 or 3)
end

local answers = {}
for i = 1, #ARGV do answers[i] = 1 end
for _, i in ipairs(rest) do answers[i] = attempt(release, i) end
return speak(refused or answers)
