-- Breaks the claim that has this token: marks it, or takes it out at once.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token, 19 digits    ARGV[2]  "forced" or "graceful"    ARGV[3]  the record: who, when, why
--
-- 1 there was one, 0 there was none. The record stays at ….broken… for a minute, and for at least
-- as long as the claim's own ttl.
local clock = redis.call('TIME')

-- #include line.lua

local function break_claim()
  local list = demand(KEYS[1])
  local records = redis.call('TYPE', list.broken).ok
  if records ~= 'none' and records ~= 'hash' then refuse(list.broken) end
  if list.alone and list.alone.token ~= ARGV[1] then return 0 end
  insist(list)
  open(list)
  local id, c
  for _, each in ipairs(redis.call('ZRANGE', list.line, 0, -1)) do
    local claim = read_claim(list, each)
    if claim.token == ARGV[1] then id, c = each, claim end
  end
  if id then
    redis.call('HSET', list.broken, id, ARGV[3], 'last', ARGV[3])
    local keep = math.max(60000, c.hold + 1, c.wait + 1, redis.call('PTTL', list.broken))
    redis.call('PEXPIRE', list.broken, string.format('%.0f', keep))
    tell(c.client, 'look ' .. id, list)
    if ARGV[2] == 'forced' then
      remove(list, id)
      promote(list)
    else
      c.broken = '1'
      write_claim(list, id, c)
    end
  end
  close(list)
  return id and 1 or 0
end

return speak(attempt(break_claim))
