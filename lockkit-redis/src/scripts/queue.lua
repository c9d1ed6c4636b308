-- The rule of the queue, for queues with waiters or shared claims. No script of its own: each
-- operation includes it behind its fast path, so that this code runs only where it is needed.
--
-- A queue has two forms. One exclusive claim without waiters is one string at the lock's key:
-- "TOKEN ID HOLD_MS WAIT_MS CLIENT LABEL", which Redis itself expires. Every other queue is
--   the lock's key   hash: `holders`, `weight` (of the holders), `capacity`, `next` (position), `at` (the
--                    millisecond in which leases were last set), and for each claim a field with its id as
--                    the name: "MODE TOKEN WEIGHT HOLD_MS WAIT_MS CLIENT QUEUED_US HELD_US BROKEN LABEL".
--                    Where messages are refused also `muted` (the first position of a client that
--                    publishes none) and `unpublished` (the last message about this queue was not sent)
--   ….queue….        sorted set: claims by their position
--   ….ends….         sorted set: claims by the millisecond at which their lease ends
-- A semaphore with a fixed limit has it in the string ….limit…., which stays.
-- The first three expire with the last lease, or some seconds later, and are deleted with the last claim. The holders are the
-- first `holders` of ….queue….. The other keys differ from the lock's own in their first word and share
-- its hash tag, so that they are in the same slot.
--
-- HOLD_MS and WAIT_MS are the longest that the claim was renewed with: no lease lasts longer from now on,
-- unless the server's clock was ahead when it was set. An operation that finds such a lease sets it back.
--
-- CLIENT is the id of the client whose process has the claim, behind a "-" when the server refuses its
-- messages. LABEL is "PID<tab>HOST<tab>PROGRAM[<tab>NOTE]". Times come from TIME, the server's clock. Tokens
-- are text of 19 digits, whatever the clock shows: text of one width compares as the numbers do, and
-- Lua's own numbers end at 2^53.
--
-- Any of the keys may be gone (evicted, or deleted by hand): without the lock's own key there is no
-- queue, and what else it had is restored.

local function names(key)
  local head, tail = string.match(key, '^(lockkit:%a+)(:.*)$')
  return { key = key, claims = head .. '.queue' .. tail, ends = head .. '.ends' .. tail,
           broken = head .. '.broken' .. tail, limit = head .. '.limit' .. tail,
           holders = 0, weight = 0, next = 1 }
end

-- When memory is full (`maxmemory`), Redis refuses the first write of a script unless it takes no
-- memory, and none of the later ones. An operation that must get through begins with this write, which
-- changes nothing.
local function write_first(queue)
  redis.call('ZREM', queue.ends, '')
end

-- The claim of a queue that is one string; nothing when the text is not one.
local function unpack_single(text)
  local token, id, hold, wait, client, label = string.match(text,
    '^(%d+) (%x+) (%d+) (%d+) (%S+) (.*)$')
  if id and #id == 32 and #token == 19 then
    return { id = id, token = token, hold = hold, wait = wait, client = client, label = label }
  end
end

local function unpack_claim(text)
  local mode, token, weight, hold, wait, client, queued, held, broken, label = string.match(text,
    '^(%a) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d) (.*)$')
  if not mode then error('a claim of unknown form') end
  return { mode = mode, token = token, weight = tonumber(weight), hold = hold, wait = wait, client = client,
           queued = queued, held = held, broken = broken, label = label }
end

local function write_claim(queue, id, c)
  redis.call('HSET', queue.key, id, table.concat({ c.mode, c.token, string.format('%d', c.weight),
    c.hold, c.wait, c.client, c.queued, c.held, c.broken, c.label }, ' '))
end

local function read_claim(queue, id)
  local text = redis.call('HGET', queue.key, id)
  return text and unpack_claim(text)
end

-- Leases end on whole milliseconds; the one that has begun does not count.
local function set_end(queue, id, ttl)
  redis.call('ZADD', queue.ends, string.format('%.0f', now + 1 + ttl), id)
end

local function is_muted(client)
  return string.sub(client, 1, 1) == '-'
end

-- Adds a claim at the end.
local function append(queue, id, client)
  redis.call('ZADD', queue.claims, string.format('%.0f', queue.next), id)
  if is_muted(client) and not queue.muted then queue.muted = queue.next end
  queue.next = queue.next + 1
end

-- The first claim, from this rank on, whose client publishes nothing.
local function find_muted(queue, rank)
  queue.muted = nil
  for _, id in ipairs(redis.call('ZRANGE', queue.claims, rank, -1)) do
    local c = read_claim(queue, id)
    if c and is_muted(c.client) then
      queue.muted = tonumber(redis.call('ZSCORE', queue.claims, id))
      return
    end
  end
end

-- What is left of the lease of the only claim, of a queue that is one string.
local function left_of_single(key, c)
  return math.min(redis.call('PTTL', key), tonumber(c.hold))
end

-- Has that lease last for so many ms at least, and gives it this token if it is greater. Writes in any
-- case: WAIT waits for what its own connection wrote.
local function renew_single(key, c, ttl, token)
  local left, longer = math.max(tonumber(ttl), left_of_single(key, c)), tonumber(ttl) > tonumber(c.hold)
  -- Takes no memory: when it is full, this write and those behind it get through.
  redis.call('PEXPIRE', key, string.format('%.0f', left))
  if longer or (token and token > c.token) then
    if longer then c.hold = ttl end
    if token and token > c.token then c.token = token end
    redis.call('SET', key, table.concat({ c.token, c.id, c.hold, c.wait, c.client, c.label }, ' '), 'PX',
      string.format('%.0f', left))
  end
  return c.token
end

-- The string becomes a hash.
local function expand(queue)
  local c = queue.single
  local left = left_of_single(queue.key, c)
  redis.call('DEL', queue.key, queue.claims, queue.ends)
  local since = string.sub(c.token, -16) -- the token is when it was taken, as good as always
  write_claim(queue, c.id, { mode = 'x', token = c.token, weight = CAPACITY, hold = c.hold, wait = c.wait,
                            client = c.client, queued = since, held = since, broken = '0', label = c.label })
  append(queue, c.id, c.client)
  redis.call('ZADD', queue.ends, string.format('%.0f', now + 1 + left), c.id)
  queue.holders, queue.weight, queue.capacity = 1, tonumber(CAPACITY), tonumber(CAPACITY)
end

-- Removes a claim; false when it is not there. `promote` follows.
local function remove(queue, id)
  local rank = redis.call('ZRANK', queue.claims, id)
  if not rank then return false end
  if rank < queue.holders then
    queue.holders = queue.holders - 1
    queue.weight = queue.weight - read_claim(queue, id).weight
  end
  local first_muted = queue.muted and tonumber(redis.call('ZSCORE', queue.claims, id)) == queue.muted
  carried[id] = nil -- promoted by this very call, perhaps
  redis.call('HDEL', queue.key, id)
  redis.call('ZREM', queue.claims, id)
  redis.call('ZREM', queue.ends, id)
  if first_muted then find_muted(queue, rank) end
  return true
end

-- Promotes the claims that hold now, and tells their clients; not that of `mine`, which the answer to
-- this call is about.
local function promote(queue, mine)
  while true do
    local id = redis.call('ZRANGE', queue.claims, queue.holders, queue.holders)[1]
    if not id then return end
    local c = read_claim(queue, id)
    if queue.weight + c.weight > queue.capacity then
      -- Usually the next one learns that it is the next from its own renewal. When the one before
      -- it may end sooner than that, it gets a message.
      local last = queue.notified and read_claim(queue, queue.notified)
      if last and id ~= mine and tonumber(last.hold) * 3 < tonumber(c.wait) then
        notify(c.client, 'poll ' .. id, queue)
      end
      return
    end
    queue.holders = queue.holders + 1
    queue.weight = queue.weight + c.weight
    c.held = now_us
    write_claim(queue, id, c)
    set_end(queue, id, c.hold)
    if id ~= mine then
      queue.notified = id
      tell(c.client, id, c.token, queue)
    end
  end
end

-- The claims of a queue in their order, which is also that of their tokens.
local function in_order(queue)
  local ids = redis.call('ZRANGE', queue.claims, 0, -1)
  if ids[1] then return ids end
  local fields, tokens = redis.call('HGETALL', queue.key), {}
  for i = 1, #fields, 2 do
    if #fields[i] == 32 then
      ids[#ids + 1] = fields[i]
      tokens[fields[i]] = unpack_claim(fields[i + 1]).token
    end
  end
  table.sort(ids, function(a, b) return tokens[a] < tokens[b] end)
  return ids
end

-- Restores the positions, or the ends, of a queue that has lost them. When its leases end is not known
-- any more: each of them lasts for a whole ttl from now.
local function restore(queue)
  local ids = in_order(queue)
  if redis.call('EXISTS', queue.claims) == 0 then
    queue.next, queue.muted = 1, nil
    for _, id in ipairs(ids) do append(queue, id, read_claim(queue, id).client) end
  end
  if redis.call('EXISTS', queue.ends) == 0 then
    for rank, id in ipairs(ids) do
      local c = read_claim(queue, id)
      set_end(queue, id, rank <= queue.holders and c.hold or c.wait)
    end
  end
end

-- Reads what a queue has in common: `kind` is what its key is, "none" for a lock that is free. Changes
-- nothing. Nothing, and the key at fault, when one of its keys has a value that is not lockkit's.
local function find(key)
  local queue = names(key)
  queue.kind = redis.call('TYPE', key).ok
  if queue.kind == 'string' then
    queue.single = unpack_single(redis.call('GET', key))
    if not queue.single then return nil, key end
  elseif queue.kind == 'hash' then
    local meta = redis.call('HMGET', key, 'holders', 'weight', 'capacity', 'next', 'muted', 'unpublished', 'at')
    queue.holders, queue.weight = tonumber(meta[1]), tonumber(meta[2])
    queue.capacity, queue.next = tonumber(meta[3]), tonumber(meta[4])
    queue.muted, queue.unpublished, queue.at = tonumber(meta[5]), meta[6], tonumber(meta[7])
    queue.was_muted = queue.muted
    if not (queue.holders and queue.weight and queue.capacity and queue.next) then return nil, key end
  elseif queue.kind ~= 'none' then
    return nil, key
  end
  for _, beside in ipairs({ queue.claims, queue.ends }) do
    local kind = redis.call('TYPE', beside).ok
    if kind == 'none' then
      queue.incomplete = true
    elseif kind ~= 'zset' then
      return nil, beside
    end
  end
  return queue
end

-- The same; an error when it is not lockkit's.
local function must_find(key)
  local queue, foreign = find(key)
  if not queue then refuse(foreign) end
  return queue
end

-- The clock was ahead when leases were set: they last for their ttl from now on, and not until it gets
-- there again.
local function set_back(queue)
  for rank, id in ipairs(redis.call('ZRANGE', queue.claims, 0, -1)) do
    local c = read_claim(queue, id)
    local ttl = tonumber(rank <= queue.holders and c.hold or c.wait)
    local ends = redis.call('ZSCORE', queue.ends, id)
    if ends and tonumber(ends) > now + 1 + ttl then set_end(queue, id, ttl) end
  end
end

-- Makes a queue that was found one to work with, and prunes expired claims. A lock that is
-- free is a queue without claims.
local function open(queue, mine)
  if queue.kind == 'string' then
    expand(queue)
  elseif queue.kind == 'none' then
    redis.call('DEL', queue.claims, queue.ends) -- of a queue whose own key is gone
  elseif queue.incomplete then
    restore(queue)
  end
  if queue.at and queue.at > now then set_back(queue) end
  local ended = redis.call('ZRANGEBYSCORE', queue.ends, '-inf', string.format('%.0f', now))
  for _, id in ipairs(ended) do remove(queue, id) end
  if ended[1] then promote(queue, mine) end
  return queue
end

-- Writes back what the queue has in common. The last one out takes the keys along.
local function close(queue)
  local last = redis.call('ZREVRANGE', queue.ends, 0, 0, 'WITHSCORES')
  if not last[1] then
    redis.call('DEL', queue.key, queue.claims, queue.ends)
    return
  end
  redis.call('HSET', queue.key, 'holders', string.format('%d', queue.holders), 'weight',
    string.format('%.0f', queue.weight), 'capacity', string.format('%.0f', queue.capacity), 'next',
    string.format('%.0f', queue.next), 'at', string.format('%.0f', now))
  if queue.muted then
    redis.call('HSET', queue.key, 'muted', string.format('%.0f', queue.muted))
  elseif queue.was_muted then
    redis.call('HDEL', queue.key, 'muted')
  end
  for _, key in ipairs({ queue.key, queue.claims, queue.ends }) do
    redis.call('PEXPIREAT', key, last[2])
  end
end

-- `which` is "hold" or "wait".
local function extend(queue, id, c, which, ttl)
  local old = tonumber(redis.call('ZSCORE', queue.ends, id))
  if now + 1 + ttl > old then set_end(queue, id, ttl) end
  if tonumber(ttl) > tonumber(c[which]) then
    c[which] = ttl
    write_claim(queue, id, c)
  end
end

-- What became of a claim that is not in the queue: {RECORD} when it was broken, otherwise 0.
local function claim_end(queue, id)
  local record = redis.pcall('HGET', queue.broken, id)
  return type(record) == 'string' and { record } or 0
end

-- After how many ms a waiting claim is to poll, at the latest, if messages about its grant may be refused:
-- as often as where there is no subscription.
local function poll_pace(queue, id, c, first)
  if not queue.unpublished then
    if not queue.muted or tonumber(redis.call('ZSCORE', queue.claims, id)) <= queue.muted then return end
  end
  if not first then return 1000 end
  return math.floor(math.max(10, math.min(100, (now_us - c.queued) / 10000)))
end

-- The messages of this client are refused by now: claims behind it are to know.
local function mark_muted(queue, id, c)
  c.client = '-' .. c.client
  write_claim(queue, id, c)
  local position = tonumber(redis.call('ZSCORE', queue.claims, id))
  queue.muted = math.min(queue.muted or position, position)
end

-- Renews a claim with these ttls, and gives its state:
--   TOKEN            it holds
--   {AHEAD, POLL}    it waits behind so many, and is to poll after POLL ms, unless it is notified or
--                    renewed before: the first waiter when any lease ends, others
--                    when that of the one right before them does; sooner where messages are refused
--   {RECORD}         it was broken
--   0                it is not in the queue
local function renew(queue, id, hold, wait)
  local rank = redis.call('ZRANK', queue.claims, id)
  if not rank then return claim_end(queue, id) end
  local c = read_claim(queue, id)
  if c.broken == '1' then return { redis.call('HGET', queue.broken, id) or '' } end
  if MUTED and not is_muted(c.client) then mark_muted(queue, id, c) end
  if rank < queue.holders then
    extend(queue, id, c, 'hold', hold)
    return c.token
  end
  extend(queue, id, c, 'wait', wait)
  local poll
  if rank == queue.holders then
    poll = redis.call('ZRANGE', queue.ends, 0, 0, 'WITHSCORES')[2]
  else
    poll = redis.call('ZSCORE', queue.ends, redis.call('ZRANGE', queue.claims, rank - 1, rank - 1)[1])
  end
  local pace = poll_pace(queue, id, c, rank == queue.holders)
  return { rank, pace and math.min(pace, poll - now) or poll - now }
end

-- The fixed limit of a semaphore, if any.
local function fixed_limit(queue)
  local limit = redis.pcall('GET', queue.limit)
  if not limit then return nil end
  if type(limit) == 'table' or not string.find(limit, '^%d+$') then refuse(queue.limit) end
  return tonumber(limit)
end

-- The last token of a counter, if it has one.
local function last_token(counter)
  local last = redis.pcall('GET', counter)
  if not last then return nil end
  if type(last) == 'table' or #last ~= 19 or string.find(last, '%D') then refuse(counter) end
  return last
end

-- The next token: greater than every one before it, at least what the client says, and at least the
-- clock's: should older data come back, the counter does not know of tokens that others have had.
local function next_token(counter, least)
  local last, token = last_token(counter), padded(now_us)
  if least > token then token = least end
  if last and last >= token then
    if last < LARGEST then
      token = string.format('%019.0f', last + 1)
    else
      -- Redis counts exactly, but text without zeros in front.
      redis.call('SET', counter, (string.gsub(last, '^0+', '')))
      redis.call('INCR', counter)
      token = padded(redis.call('GET', counter))
    end
  end
  redis.call('SET', counter, token)
  return token
end
