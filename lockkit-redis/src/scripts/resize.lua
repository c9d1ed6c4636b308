-- Gives a semaphore a limit that stays, and lets those begin to hold who now do.
--
-- KEYS[1]  the semaphore
-- ARGV[1]  "to" or "unset": only if it has none        ARGV[2]  the limit
--
-- The limit that it has now, as text. Who holds goes on holding, whatever the limit.
local clock = redis.call('TIME')

-- #include line.lua

local function resize()
  local list = demand(KEYS[1])
  local given = given_limit(list)
  if given and ARGV[1] == 'unset' then return string.format('%.0f', given) end

  open(list)
  local limit = ARGV[2]
  if redis.call('ZCARD', list.line) > 0 then
    if ARGV[1] == 'unset' then
      limit = string.format('%.0f', list.capacity) -- the one that it is in use with
    else
      list.capacity = tonumber(limit)
      promote(list)
    end
  end
  redis.call('SET', list.limit, limit)
  close(list)
  return limit
end

return speak(attempt(resize))
