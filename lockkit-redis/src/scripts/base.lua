-- Raises the token base of a namespace to at least this; it never goes down.
--
-- KEYS[1]  the base        ARGV[1]  at least this; 0 to read it
--
-- The base, in digits.

-- #include answer.lua

local function raise()
  local now = redis.pcall('GET', KEYS[1]) or '0'
  if type(now) == 'table' or not string.find(now, '^%d+$') then refuse(KEYS[1]) end
  -- As decimal strings, since Lua's numbers end at 2^53.
  if #now > #ARGV[1] or (#now == #ARGV[1] and now >= ARGV[1]) then return now end
  redis.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end

return attempt(raise)
