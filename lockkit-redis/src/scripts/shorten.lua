-- Makes the lease of a claim that holds end this many ms from now.
--
-- KEYS[1]  the lock        ARGV[1]  the claim's id, ARGV[2] the ms
--
-- What `renew` in line.lua says.

-- #include line.lua

if redis.pcall('GETRANGE', KEYS[1], '0', '31') == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return redis.call('GETRANGE', KEYS[1], '33', '51')
end
if redis.call('TYPE', KEYS[1]).ok == 'string' then
  local record = redis.call('HGET', names(KEYS[1]).broken, ARGV[1])
  return record and { record } or 0
end
insist(KEYS[1])
local list = open(KEYS[1])
local answer = renew(list, ARGV[1], 0, 0)
if type(answer) == 'string' then set_end(list, ARGV[1], ARGV[2]) end
close(list)
return answer
