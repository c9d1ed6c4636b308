-- Reads a register, and asks to be told of its next change when it is as the caller knows it.
--
-- KEYS[1]  the register
-- ARGV[1]  the version that the caller knows, "0" for no value, "" when it does not want to wait
-- ARGV[2]  the caller's client id    ARGV[3]  for how many ms it wants to be told
--
-- {VALUE, VERSION, TOKEN or "", MS}, or 0 when there is no value. MS is how long the value is there
-- for, -1 when it stays.
--
-- A register is a hash: `value`, `version`, `token` (the highest that a write bore), `write` (the id
-- of the last write), `until` (µs; absent when the value stays). Who wants to be told is in the
-- sorted set lockkit:register.watchers:…, by the ms at which they are forgotten.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local r = redis.call('HMGET', KEYS[1], 'value', 'version', 'token', 'until')
local there = r[1] and (not r[4] or tonumber(r[4]) > now_us)
if ARGV[1] ~= '' and ARGV[1] == (there and r[2] or '0') then
  local watchers = string.gsub(KEYS[1], '^lockkit:register:', 'lockkit:register.watchers:')
  local now = math.floor(now_us / 1000)
  redis.call('ZREM', watchers, '') -- changes nothing: what follows is not refused when memory is full
  redis.call('ZADD', watchers, string.format('%.0f', now + ARGV[3]), ARGV[2])
  if redis.call('PTTL', watchers) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', watchers, ARGV[3])
  end
end
if not there then return 0 end
return { r[1], r[2], r[3] or '', r[4] and math.ceil((r[4] - now_us) / 1000) or -1 }
