-- Makes a claim that holds alone one that shares, in its place; renews it.
--
-- KEYS[1]  the lock        ARGV[1…3]  the claim's id, its hold ttl and its wait ttl in ms
--
-- What `renew` in line.lua says.

-- #include line.lua

if redis.call('TYPE', KEYS[1]).ok == 'string'
  and redis.call('GETRANGE', KEYS[1], '0', '31') ~= ARGV[1] then
  local record = redis.call('HGET', names(KEYS[1]).broken, ARGV[1])
  return record and { record } or 0
end
insist(KEYS[1])
local list = open(KEYS[1])
local answer = renew(list, ARGV[1], ARGV[2], ARGV[3])
if type(answer) == 'string' then
  local c = read_claim(list, ARGV[1])
  if c.mode == 'x' then
    list.weight = list.weight - c.weight + 1
    c.mode, c.weight = 's', 1
    write_claim(list, ARGV[1], c)
    promote(list, ARGV[1])
  end
end
close(list)
return answer
