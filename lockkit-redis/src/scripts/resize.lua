-- Gives a semaphore a fixed limit, and promotes the claims that hold now.
--
-- KEYS[1]  the semaphore
-- ARGV[1]  "to" or "unset": only if it has none        ARGV[2]  the limit
--
-- The limit that it has now, as text. Holders go on holding, whatever the limit.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local function resize()
  local queue = must_find(KEYS[1])
  local given = fixed_limit(queue)
  if given and ARGV[1] == 'unset' then return string.format('%.0f', given) end

  open(queue)
  local limit = ARGV[2]
  if queue.count > 0 then
    if ARGV[1] == 'unset' then
      limit = string.format('%.0f', queue.capacity) -- the one that it is in use with
    else
      queue.capacity = tonumber(limit)
      promote(queue)
    end
  end
  redis.call('SET', queue.limit, limit)
  close(queue)
  return limit
end

return speak(attempt(resize))
