-- Breaks the claim that has this token: marks it, or removes it at once.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token, 19 digits    ARGV[2]  "forced" or "graceful"    ARGV[3]  the record: who, when, why
--
-- 1 there was one, 0 there was none. The record stays at ….broken… for a minute, and for at least
-- as long as the claim's own ttl.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local function break_claim()
  local queue = must_find(KEYS[1])
  local records = redis.call('TYPE', queue.broken).ok
  if records ~= 'none' and records ~= 'hash' then refuse(queue.broken) end
  if queue.single and queue.single.token ~= ARGV[1] then return 0 end
  write_first(queue)
  open(queue)
  local c
  for _, sequence in ipairs(sequences(queue)) do
    local each = read_claim(queue, sequence)
    if each.token == ARGV[1] then c = each end
  end
  if c then
    redis.call('HSET', queue.broken, c.id, ARGV[3], 'last', ARGV[3])
    local keep = math.max(60000, c.hold + 1, c.wait + 1, redis.call('PTTL', queue.broken))
    redis.call('PEXPIRE', queue.broken, string.format('%.0f', keep))
    notify(c.client, 'poll ' .. c.id, queue)
    if ARGV[2] == 'forced' then
      remove(queue, c)
      promote(queue)
    else
      c.broken = '1'
      write_claim(queue, c)
    end
  end
  close(queue)
  return c and 1 or 0
end

return speak(attempt(break_claim))
