-- Makes the lease of a claim that holds end this many ms from now.
--
-- KEYS[1]  the lock        ARGV[1]  the claim's id, ARGV[2] the ms
--
-- What `renew` in queue.lua says.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local function shorten()
  local queue = must_find(KEYS[1])
  if queue.single then
    if queue.single.id ~= ARGV[1] then return claim_end(queue, ARGV[1]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return queue.single.token
  end
  write_first(queue)
  open(queue)
  local answer = renew(queue, ARGV[1], 0, 0)
  if type(answer) == 'string' then
    local c = find_claim(queue, ARGV[1])
    set_end(queue, c, ARGV[2])
    write_claim(queue, c)
  end
  close(queue)
  return answer
end

return speak(attempt(shorten))
