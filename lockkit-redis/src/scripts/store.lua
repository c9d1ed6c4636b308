-- Writes or deletes a register's value, and notifies the clients that wait for a change.
--
-- KEYS[1]  the register
-- ARGV[1]  "store" or "delete"
-- ARGV[2]  what is expected: "any", "absent", or a version
-- ARGV[3]  the token, or ""    ARGV[4]  the id of this write    ARGV[5]  ttl in ms, or ""
-- ARGV[6]  the value       ARGV[7]  "repeated" when this same write may have been applied before
--
-- {"stored", VERSION} | {"conflict"} | {"stale", HIGHEST}
--
-- A store is refused as a whole when memory is full, a deletion never is.
--
-- Versions are the server's clock in µs, or the last one plus 1: they grow also across the end of
-- a register that leaves nothing behind. One that was written with tokens leaves the highest.
local clock = redis.call('TIME')

-- #include answer.lua
-- #include register.lua

local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local function less(a, b) -- decimal strings: Lua's numbers end at 2^53
  if #a ~= #b then return #a < #b end
  return a < b
end

local function store()
  local r = read_register(KEYS[1], 'write', 'value')
  if r[1] == ARGV[4] then return { 'stored', r.version } end
  local watchers, watching = read_watchers(KEYS[1], now)
  if ARGV[3] ~= '' and r.token and less(ARGV[3], r.token) then return { 'stale', r.token } end

  local there = r[2] and (not r.ends or tonumber(r.ends) > now_us)
  local expected = ARGV[2] == 'any' or (ARGV[2] == 'absent' and not there)
    or (there and ARGV[2] == r.version)
  if not expected then return { 'conflict' } end

  -- The earlier attempt may have been applied, and then overwritten by another client: to apply it again would
  -- undo that. It was not where the version that it expects is still there, where no write had a token
  -- as great, or where there was no write at all. One that expects nothing and has no token may be
  -- applied at any time.
  local harmless = (there and ARGV[2] == r.version) or not r.version
    or (ARGV[3] == '' and ARGV[2] == 'any')
    or (ARGV[3] ~= '' and (not r.token or less(r.token, ARGV[3])))
  if ARGV[7] == 'repeated' and not harmless then return { 'conflict' } end

  local version = string.format('%.0f', math.max(now_us, (r.version or 0) + 1))
  if ARGV[1] == 'store' then
    redis.call('HSET', KEYS[1], 'value', ARGV[6], 'version', version, 'write', ARGV[4])
    redis.call('HDEL', KEYS[1], 'until')
  else
    redis.call('HDEL', KEYS[1], 'value', 'until')
    redis.call('HSET', KEYS[1], 'version', version, 'write', ARGV[4])
  end
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now_us + 1000 * ARGV[5]))
  end
  local token = r.token
  if ARGV[3] ~= '' then
    token = ARGV[3]
    redis.call('HSET', KEYS[1], 'token', token)
  end
  -- What has no value and no token is only kept for as long as a write may be asked for again.
  if not token and (ARGV[1] == 'delete' or ARGV[5] ~= '') then
    local stays = ARGV[1] == 'delete' and 0 or ARGV[5]
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 600000 + stays))
  else
    redis.call('PERSIST', KEYS[1])
  end
  redis.call('DEL', watchers)
  for _, client in ipairs(watching) do notify(client, 'changed ' .. KEYS[1]) end
  return { 'stored', version }
end

return speak(attempt(store))
