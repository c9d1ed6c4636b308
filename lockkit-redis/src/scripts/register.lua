-- What registers are made of. No script of its own: others include it, behind answer.lua.
--
-- A register is a hash: `value`, `version`, `token` (the highest that a write bore), `write` (the id
-- of the last write), `until` (µs; absent when the value stays). Clients to notify are in the
-- sorted set lockkit:register.watchers:…, by the ms at which they are forgotten.

-- `version`, `token` and `ends`, and these fields in their order; an error when it is no register.
local function read_register(key, ...)
  local r = redis.pcall('HMGET', key, 'version', 'token', 'until', ...)
  if r.err or (not r[1] and redis.call('EXISTS', key) == 1) then refuse(key) end
  for i = 1, 3 do
    if r[i] and not string.find(r[i], '^%d+$') then refuse(key) end
  end
  return { version = r[1], token = r[2], ends = r[3], unpack(r, 4) }
end

-- The key of the clients to notify, and these.
local function read_watchers(key, now)
  local watchers = string.gsub(key, '^lockkit:register:', 'lockkit:register.watchers:')
  local clients = redis.pcall('ZRANGEBYSCORE', watchers, string.format('(%.0f', now), '+inf')
  if clients.err then refuse(watchers) end
  return watchers, clients
end
