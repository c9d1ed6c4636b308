-- Makes the lease of a claim that holds end this many ms from now.
--
-- KEYS[1]  the lock        ARGV[1]  the claim's id, ARGV[2] the ms
--
-- What `renew` in line.lua says.
local clock = redis.call('TIME')

-- #include line.lua

local function shorten()
  local list = demand(KEYS[1])
  if list.alone then
    if list.alone.id ~= ARGV[1] then return ended(list, ARGV[1]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return list.alone.token
  end
  insist(list)
  open(list)
  local answer = renew(list, ARGV[1], 0, 0)
  if type(answer) == 'string' then set_end(list, ARGV[1], ARGV[2]) end
  close(list)
  return answer
end

return speak(attempt(shorten))
