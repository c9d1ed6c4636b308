-- Tells of a register without its value; changes nothing.
--
-- KEYS[1]  the register
--
-- {BYTES, VERSION, TOKEN or ""}, or 0 when there is no value.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local r = redis.call('HMGET', KEYS[1], 'version', 'token', 'until')
local there = redis.call('HEXISTS', KEYS[1], 'value') == 1
if not there or (r[3] and tonumber(r[3]) <= now_us) then return 0 end
return { redis.call('HSTRLEN', KEYS[1], 'value'), r[1], r[2] or '' }
