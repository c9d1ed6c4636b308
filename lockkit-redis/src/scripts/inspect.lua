-- Shows a list as it is; changes nothing.
--
-- KEYS[1]  the lock
--
-- {NOW_US, LAST_BREAK or false, CAPACITY or 0, HOLDERS, CLAIM…}, each claim as
-- {LEFT_MS, TEXT}, TEXT being "MODE TOKEN WEIGHT HOLD_MS WAIT_MS CLIENT QUEUED_US HELD_US BROKEN SHOWN".
-- Ids are not shown. Claims whose lease has ended are still in it, with LEFT_MS of 0 or less.

-- #include line.lua

local list = names(KEYS[1])
local state = { now_us, redis.call('HGET', list.broken, 'last'), 0, 0 }
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  local token, hold, wait, client, shown = string.match(redis.call('GET', KEYS[1]),
    '^%x+ (%d+) (%d+) (%d+) (%S+) (.*)$')
  state[3], state[4] = tonumber(CAPACITY), 1
  local since = string.sub(token, -16)
  -- At 0 ms Redis still has it.
  state[5] = { math.max(1, redis.call('PTTL', KEYS[1])), table.concat({ 'x', token, CAPACITY, hold, wait, client,
    since, since, '0', shown }, ' ') }
elseif kind == 'hash' then
  local meta = redis.call('HMGET', KEYS[1], 'capacity', 'holders')
  state[3], state[4] = tonumber(meta[1]), tonumber(meta[2])
  for rank, id in ipairs(in_order(list)) do
    local ends, c = redis.call('ZSCORE', list.ends, id), read_claim(list, id)
    -- Without an end it lasts as `restore` says, once somebody asks.
    local left = ends and ends - now or tonumber(rank <= state[4] and c.hold or c.wait)
    state[#state + 1] = { left, redis.call('HGET', KEYS[1], id) }
  end
end
return state
