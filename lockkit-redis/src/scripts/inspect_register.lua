-- Tells of a register without its value; changes nothing.
--
-- KEYS[1]  the register
--
-- {BYTES, VERSION, TOKEN or ""}, or 0 when there is no value.
local clock = redis.call('TIME')

-- #include answer.lua
-- #include register.lua

local function inspect_once()
  local r = read_register(KEYS[1])
  local there = redis.call('HEXISTS', KEYS[1], 'value') == 1
  if not there or (r.ends and tonumber(r.ends) <= clock[1] * 1000000 + clock[2]) then return 0 end
  return { redis.call('HSTRLEN', KEYS[1], 'value'), r.version, r.token or '' }
end

return attempt(inspect_once)
