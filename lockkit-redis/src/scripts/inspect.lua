-- Shows a list as it is; changes nothing.
--
-- KEYS[1]  the lock
--
-- {NOW_US, LAST_BREAK or false, CAPACITY or 0, HOLDERS, CLAIM…}, each claim as
-- {LEFT_MS, TEXT}, TEXT being "MODE TOKEN WEIGHT HOLD_MS WAIT_MS CLIENT QUEUED_US HELD_US BROKEN SHOWN".
-- Ids are not shown. Claims whose lease has ended are still in it, with LEFT_MS of 0 or less.
local clock = redis.call('TIME')

-- #include line.lua

local function inspect()
  local list = demand(KEYS[1])
  local record = redis.pcall('HGET', list.broken, 'last')
  local state = { now_us, type(record) == 'string' and record, 0, 0 }
  if list.alone then
    local c = list.alone
    state[3], state[4] = tonumber(CAPACITY), 1
    local since = string.sub(c.token, -16)
    -- At 0 ms Redis still has it.
    state[5] = { math.max(1, left_alone(KEYS[1], c)), table.concat({ 'x', c.token, CAPACITY, c.hold,
      c.wait, c.client, since, since, '0', c.shown }, ' ') }
  elseif list.kind == 'hash' then
    state[3], state[4] = list.capacity, list.holders
    for rank, id in ipairs(in_order(list)) do
      local ends, c = redis.call('ZSCORE', list.ends, id), read_claim(list, id)
      -- Without an end it lasts as `restore` says, once somebody asks, and never longer (see `set_back`).
      local ttl = tonumber(rank <= state[4] and c.hold or c.wait)
      local left = ends and math.min(ends - now, ttl) or ttl
      state[#state + 1] = { left, redis.call('HGET', KEYS[1], id) }
    end
  end
  return state
end

return attempt(inspect)
