-- The fast path of a hand-over: the exclusive claim that holds leaves, the exclusive claim behind it holds,
-- and another exclusive claim may come to the end of the queue. No script of its own. queue.lua, which
-- describes the keys, does the same in four times as many commands; what is special is left to it.

-- The counter's next token, without writing it; nothing where that is for `next_token` in queue.lua.
local function propose(counter, least)
  local last, token = redis.pcall('GET', counter), padded(now_us)
  if type(last) == 'table' then return end
  if least > token then token = least end
  if not last or last < token then
    return (not last or (#last == 19 and not string.find(last, '%D'))) and token
  end
  return #last == 19 and last < LARGEST and not string.find(last, '%D') and string.format('%019.0f', last + 1)
end

-- The claim that comes, of its text " ID HOLD_MS WAIT_MS CLIENT LABEL"; nothing when its client is muted.
local function newcomer(text, token)
  local id, hold, wait, client, label = string.match(text, '^ (%x+) (%d+) (%d+) ([^%s%-]%S*) (.*)$')
  if not id then return end
  return { id = id, wait = tonumber(wait), text = table.concat({ 'x', token, CAPACITY, hold, wait, client,
    now_us, '0', '0', label }, ' ') }
end

-- The claim behind the one with this id, which holds, and the wait ttl of the one behind that. Nothing
-- unless it alone holds, all are live, and no message may be refused.
local function find_next(key, queue, ends, id, coming)
  local meta = redis.pcall('HMGET', key, id, 'holders', 'capacity', 'next', 'at', 'muted', 'unpublished',
    coming or id)
  if meta.err or not meta[1] or meta[2] ~= '1' or meta[3] ~= CAPACITY or not meta[4] or meta[6] or meta[7]
    or tonumber(meta[5] or 0) > now or (coming and meta[8]) or string.sub(meta[1], 1, 2) ~= 'x ' then return end
  local ids = redis.pcall('ZRANGE', queue, 0, 2)
  if ids.err or ids[1] ~= id or not ids[2] then return end
  local first = redis.pcall('ZRANGE', ends, 0, 0, 'WITHSCORES')
  if first.err or not first[2] or tonumber(first[2]) <= now then return end
  local texts = redis.call('HMGET', key, ids[2], ids[3] or ids[2])
  if not texts[1] or not texts[2] then return end
  local wait = ids[3] and string.match(texts[2], '^%a %d+ %d+ %d+ (%d+)')
  return { id = ids[2], text = texts[1], next_wait = tonumber(wait or 0), position = meta[4], first = tonumber(first[2]) }
end

-- Passes the lock on from the claim with this id, and adds the claim of `text`, if any. The answer to its
-- acquire, or true; nothing when nothing was done, and queue.lua has to.
local function pass(key, id, counter, text, least)
  local head, tail = string.match(key, '^(lockkit:%a+)(:.*)$')
  local queue, ends = head .. '.queue' .. tail, head .. '.ends' .. tail
  local heir = find_next(key, queue, ends, id, text and string.sub(text, 2, 33))
  if not heir then return end
  local before, token, hold, client, behind = string.match(heir.text,
    '^(x (%d+) %d+ (%d+) %d+ (%S+) %d+) %d+ (0 .*)$')
  if not before or hold * 3 < heir.next_wait then return end -- see `promote`
  local chosen = text and propose(counter, least)
  local new = chosen and newcomer(text, chosen)
  if text and not new then return end

  -- First what takes no memory: when it is full, this write and those behind it get through.
  redis.call('ZREM', queue, id)
  redis.call('ZREM', ends, id)
  redis.call('HDEL', key, id)
  carried[id] = nil -- promoted by this very call, perhaps
  local held, longest = before .. ' ' .. now_us .. ' ' .. behind, tonumber(hold)
  local answer, heir_end = true, string.format('%.0f', now + 1 + hold)
  local at = string.format('%.0f', now)
  if new then
    redis.call('SET', counter, chosen)
    redis.call('ZADD', queue, heir.position, new.id)
    redis.call('ZADD', ends, heir_end, heir.id, string.format('%.0f', now + 1 + new.wait), new.id)
    redis.call('HSET', key, heir.id, held, new.id, new.text, 'next', string.format('%.0f', heir.position + 1), 'at', at)
    -- It polls when any lease ends: no later than `renew` in queue.lua says, and read already.
    local poll = math.min(heir.first, tonumber(heir_end)) - now
    answer = { 'waits', redis.call('ZCARD', queue) - 1, poll }
    longest = math.max(longest, new.wait)
  else
    redis.call('ZADD', ends, heir_end, heir.id)
    redis.call('HSET', key, heir.id, held, 'at', at)
  end
  if redis.call('PTTL', key) <= longest then
    -- Somewhat later than the last lease ends, so that the next hand-overs need not.
    local last = string.format('%.0f', now + 1 + longest + longest / 4)
    for _, each in ipairs({ key, queue, ends }) do redis.call('PEXPIREAT', each, last) end
  end
  tell(client, heir.id, token, { key = key })
  return answer
end
