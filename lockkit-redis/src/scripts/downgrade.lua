-- Makes an exclusive claim a shared one at its position; renews it.
--
-- KEYS[1]  the lock        ARGV[1…3]  the claim's id, its hold ttl and its wait ttl in ms
--
-- What `renew` in queue.lua says.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local function downgrade()
  local queue = must_find(KEYS[1])
  if queue.single and queue.single.id ~= ARGV[1] then return claim_end(queue, ARGV[1]) end
  write_first(queue)
  open(queue)
  local answer = renew(queue, ARGV[1], ARGV[2], ARGV[3])
  if type(answer) == 'string' then
    local c = find_claim(queue, ARGV[1])
    if c.mode == 'x' then
      queue.weight = queue.weight - c.weight + 1
      c.mode, c.weight = 's', 1
      write_claim(queue, c)
      promote(queue, ARGV[1])
    end
  end
  close(queue)
  return answer
end

return speak(attempt(downgrade))
