-- Makes a claim that holds alone one that shares, in its place; renews it.
--
-- KEYS[1]  the lock        ARGV[1…3]  the claim's id, its hold ttl and its wait ttl in ms
--
-- What `renew` in line.lua says.
local clock = redis.call('TIME')

-- #include line.lua

local function downgrade()
  local list = demand(KEYS[1])
  if list.alone and list.alone.id ~= ARGV[1] then return ended(list, ARGV[1]) end
  insist(list)
  open(list)
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
end

return speak(attempt(downgrade))
