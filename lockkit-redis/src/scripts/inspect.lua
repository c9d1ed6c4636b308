-- Shows a queue as it is; changes nothing.
--
-- KEYS[1]  the lock
--
-- {NOW_US, LAST_BREAK or false, CAPACITY or 0, HOLDERS, CLAIM…}, each claim as
-- {LEFT_MS, TEXT}, TEXT being "MODE TOKEN WEIGHT HOLD_MS WAIT_MS CLIENT QUEUED_US HELD_US BROKEN LABEL".
-- Ids are not shown. Claims whose lease has ended are still in it, with LEFT_MS of 0 or less.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local function inspect()
  local queue = must_find(KEYS[1])
  local record = redis.pcall('HGET', queue.broken, 'last')
  local state = { now_us, type(record) == 'string' and record, 0, 0 }
  if queue.single then
    local c = queue.single
    state[3], state[4] = tonumber(CAPACITY), 1
    local since = string.sub(c.token, -16)
    -- At 0 ms Redis still has it.
    state[5] = { math.max(1, left_of_single(KEYS[1], c)), table.concat({ 'x', c.token, CAPACITY, c.hold,
      c.wait, c.client, since, since, '0', c.label }, ' ') }
  elseif queue.kind == 'hash' then
    state[3], state[4] = queue.capacity, queue.holders
    for _, sequence in ipairs(sequences(queue)) do
      local c = read_claim(queue, sequence)
      -- Never longer than `prune` would let it last.
      local remaining = math.min(c.ends - now, tonumber(c.holds and c.hold or c.wait))
      state[#state + 1] = { remaining, table.concat({ c.mode, c.token, string.format('%.0f', c.weight), c.hold, c.wait,
        c.client, c.queued, c.held, c.broken, c.label }, ' ') }
    end
  end
  return state
end

return attempt(inspect)
