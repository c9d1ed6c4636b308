-- Reads a register, and asks to be told of its next change when it is as the caller knows it.
--
-- KEYS[1]  the register
-- ARGV[1]  the version that the caller knows, "0" for no value, "" when it does not want to wait
-- ARGV[2]  the caller's client id    ARGV[3]  for how many ms it wants to be notified
--
-- {VALUE, VERSION, TOKEN or "", MS}, or 0 when there is no value. MS is how long the value is there
-- for, -1 when it stays.
local clock = redis.call('TIME')

-- #include answer.lua
-- #include register.lua

local now_us = clock[1] * 1000000 + clock[2]

local function load()
  local r = read_register(KEYS[1], 'value')
  local there = r[1] and (not r.ends or tonumber(r.ends) > now_us)
  if ARGV[1] ~= '' and ARGV[1] == (there and r.version or '0') then
    local now = math.floor(now_us / 1000)
    local watchers = read_watchers(KEYS[1], now)
    redis.call('ZREM', watchers, '') -- changes nothing: what follows is not refused when memory is full
    redis.call('ZADD', watchers, string.format('%.0f', now + ARGV[3]), ARGV[2])
    if redis.call('PTTL', watchers) < tonumber(ARGV[3]) then
      redis.call('PEXPIRE', watchers, ARGV[3])
    end
  end
  if not there then return 0 end
  return { r[1], r.version, r.token or '', r.ends and math.ceil((r.ends - now_us) / 1000) or -1 }
end

return attempt(load)
