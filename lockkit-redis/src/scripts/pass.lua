-- The fast path of a hand-over: the exclusive claim that holds leaves, the first waiter holds, which is
-- exclusive too, and another exclusive claim may come to the end of the queue. No script of its own. queue.lua,
-- which describes the hash, does the same in twice as many commands and four times the time; what is special is
-- left to it. Functions, tables, patterns and numbers in text cost more here than commands do.

-- Passes the lock on from the claim with this id, and adds the claim of `text`, if any. The answer to its
-- acquire, or 1; and the id, the token and the client of the claim that holds now. Nothing when nothing was
-- done, and queue.lua has to.
local function pass(key, id, counter, text, least)
  local call, sub, byte = redis.call, string.sub, string.byte
  local coming = text and sub(text, 2, 33)
  local queue = redis.pcall('HMGET', key, id, 'waiter', 'next', 'soonest', 'at', 'expires', 'count', 'longest', 'muted',
    'unpublished', coming or 'muted')
  local sequence, waiter, newest, soonest = queue[1], queue[2], queue[3], tonumber(queue[4])
  -- Only where no lease has ended, no message may be refused, and the claim that comes is not there yet.
  if queue.err or not sequence or not soonest or soonest <= now or tonumber(queue[5]) > now or queue[9]
    or queue[10] or queue[11] or #now_us ~= 16 then return end
  local claims = call('HMGET', key, sequence, waiter)
  local mine, heir = claims[1], claims[2]
  -- The heir: exclusive, not broken, and each word of the width that it mostly has.
  if not mine or not heir or tonumber(sequence) >= tonumber(waiter) or byte(mine, 48) ~= 120 or byte(heir, 48) ~= 120
    or byte(heir, 104) ~= 48 or byte(heir, 126) ~= 32 or byte(heir, 136) ~= 32 or byte(heir, 153) ~= 32 then return end
  local hold, longest, new, chosen = sub(heir, 117, 125), tonumber(queue[8]), nil, nil
  local ends = now + 1 + hold
  if hold * 3 < longest or ends < soonest then return end -- see `promote`
  local last = ends
  if text then
    if byte(text, 44) ~= 32 or byte(text, 54) ~= 32 or byte(text, 71) ~= 32 then return end
    local wait = sub(text, 45, 53)
    local wait_ends = now + 1 + wait
    if tonumber(wait) > longest or wait_ends < soonest then return end
    if wait_ends > last then last = wait_ends end
    local before = redis.pcall('GET', counter)
    chosen = '000' .. now_us
    if chosen < least then chosen = least end
    if before then
      if type(before) == 'table' or #before ~= 19 or before >= LARGEST or not tonumber(before) then return end
      if before >= chosen then chosen = string.format('%019.0f', before + 1) end
    end
    new = wait_ends .. ' ' .. coming .. ' x ' .. chosen .. ' ' .. WAITING .. ' ' .. now_us .. ' 0 ' .. CAPACITY .. sub(text, 34)
  end

  -- First what takes no memory: when it is full, this write and those behind it get through.
  call('HDEL', key, sequence, id)
  local held, answer = ends .. sub(heir, 14, 69) .. now_us .. sub(heir, 86), 1
  if new then
    call('SET', counter, chosen)
    call('HSET', key, waiter, held, newest, new, coming, newest, 'waiter', waiter + 1, 'next', newest + 1, 'at', now_ms)
    -- It polls when a lease may have ended: no later than `renew` in queue.lua says, and read already.
    answer = { 'waits', queue[7] - 1, soonest - now }
  else
    call('HSET', key, waiter, held, 'waiter', waiter + 1, 'count', queue[7] - 1, 'at', now_ms)
  end
  if last > tonumber(queue[6]) then
    -- Somewhat later, so that the next calls need not.
    last = last + math.floor((last - now) / 4)
    call('HSET', key, 'expires', last)
    call('PEXPIREAT', key, last)
  end
  return answer, sub(heir, 15, 46), sub(heir, 50, 68), sub(heir, 137, 152)
end
