-- Removes claims from their queues, and tells the clients of those that hold now.
--
-- KEYS[i]  the lock        ARGV[1]  the id of the client that asks        ARGV[i+1]  the claim's id
--
-- 1, when each of them was the only one of its queue; otherwise an answer to each:
--   1 it was removed    2 it was not there, others are, or the key is not lockkit's    3 the queue is empty
--   an error of this claim only
-- Within {"granted", …} where claims of the client hold now: see `speak` in answer.lua.
local call, safecall, rest = redis.call, redis.pcall, nil
for i = 1, #ARGV - 1 do
  if safecall('GETRANGE', KEYS[i], '20', '51') == ARGV[i + 1] then
    call('DEL', KEYS[i])
  else
    rest = rest or {}
    rest[#rest + 1] = i
  end
end
if not rest then return 1 end

local clock = call('TIME')

-- #include clock.lua
-- #include pass.lua
-- #include answer.lua

sender = ARGV[1]
local answers, slow, remaining = {}, nil, {}
for i = 1, #ARGV - 1 do answers[i] = 1 end
for _, i in ipairs(rest) do
  -- Those of one lock in their order.
  local passed, heir, token, owner
  if not remaining[KEYS[i]] then passed, heir, token, owner = pass(KEYS[i], ARGV[i + 1]) end
  if passed then
    carried[ARGV[i + 1]] = nil -- promoted by this very call, perhaps
    tell(owner, heir, token, { key = KEYS[i] })
  else
    slow, remaining[KEYS[i]] = slow or {}, true
    slow[#slow + 1] = i
  end
end
if not slow then return speak(answers) end

-- #include queue.lua
-- #include leave.lua

for _, i in ipairs(slow) do answers[i] = attempt(release, KEYS[i], ARGV[i + 1]) end
return speak(refused or answers)
