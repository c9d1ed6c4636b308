-- Raises the token base of a namespace to at least this; it never goes down. Reads, and sets once, with which
-- neighbours the namespace shares its locks.
--
-- KEYS[1]  the base        ARGV[1]  at least this; 0 to read it
-- KEYS[2]  the neighbours, where they are asked for   ARGV[2]  those to set where none are, or ''
--
-- The base, in digits; with the neighbours {BASE, NEIGHBOURS}, '' for none.

-- #include answer.lua

local function raise()
  local now = redis.pcall('GET', KEYS[1]) or '0'
  if type(now) == 'table' or not string.find(now, '^%d+$') then refuse(KEYS[1]) end
  -- As decimal strings, since Lua's numbers end at 2^53.
  if #now > #ARGV[1] or (#now == #ARGV[1] and now >= ARGV[1]) then return now end
  redis.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end

local function neighbours()
  local stored = redis.pcall('GET', KEYS[2])
  if type(stored) == 'table' then refuse(KEYS[2]) end
  if not stored and ARGV[2] ~= '' then
    redis.call('SET', KEYS[2], ARGV[2])
    return ARGV[2]
  end
  return stored or ''
end

-- In a cluster there is one more key: see `Call`.
if not ARGV[2] then return attempt(raise) end
return { attempt(raise), attempt(neighbours) }
