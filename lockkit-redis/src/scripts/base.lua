-- Raises the token base of a namespace to at least this; it never goes down.
--
-- KEYS[1]  the base        ARGV[1]  at least this
--
-- 1
local now = redis.call('GET', KEYS[1]) or '0'
-- As decimal strings, since Lua's numbers end at 2^53.
if #now < #ARGV[1] or (#now == #ARGV[1] and now < ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1
