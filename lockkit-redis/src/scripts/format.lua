-- Reads the version of the format in which lockkit's keys are written. A database without one gets this.
--
-- KEYS[1]  the key of the version    ARGV[1]  the version that the client knows
--
-- The version, in digits.

-- #include answer.lua

local function read_format()
  local version = redis.pcall('GET', KEYS[1])
  if not version then
    redis.call('SET', KEYS[1], ARGV[1])
    return ARGV[1]
  end
  if type(version) == 'table' or not string.find(version, '^%d+$') then refuse(KEYS[1]) end
  return version
end

return attempt(read_format)
