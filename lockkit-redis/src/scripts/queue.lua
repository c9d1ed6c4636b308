-- The rule of the queue, for queues with waiters or shared claims. No script of its own: each
-- operation includes it behind its fast path, so that this code runs only where it is needed.
--
-- A queue has two forms. One exclusive claim without waiters is one string at the lock's key:
-- "TOKEN ID HOLD_MS WAIT_MS CLIENT LABEL", which Redis itself expires. Every other queue is a hash there:
--   for each claim  the field SEQUENCE, its sequence number: the order of the queue.
--                   "END_MS ID MODE TOKEN HELD_US QUEUED_US BROKEN WEIGHT HOLD_MS WAIT_MS CLIENT LABEL", up to
--                   BROKEN in fixed widths: 13, 32, 1, 19, 16, 16, 1 (pass.lua relies on them)
--                   the field ID: its sequence number
--   `waiter`, `next`  the sequence number of the first waiter (or `next`), and that of the next claim
--   `count`, `holders`, `weight`, `capacity`   of claims; of those that hold, and their weight; what that may be
--   `soonest`       the millisecond before which no lease ends: that of some claim, as it was once
--   `expires`, `at` the millisecond at which the key expires; that in which leases were last set
--   `longest`       the longest WAIT_MS that any claim had
--   `gaps`          the numbers from `waiter` on of claims that have left, as JSON: ranges [FIRST,LAST] in their
--                   order, with a waiting claim behind each, so that there are no more of them than of those
--   `muted`, `unpublished`  where messages are refused: the first number of a client that publishes none; the
--                   last message about this queue was not sent
-- A semaphore with a fixed limit has it in the string ….limit…., which stays.
-- The hash expires with the last lease, or some seconds later, and is deleted with the last claim. The holders are
-- those before `waiter`. The other keys differ from the lock's own in their first word and share its hash tag,
-- so that they are in the same slot.
--
-- HOLD_MS and WAIT_MS are the longest that the claim was renewed with: no lease lasts longer from now on,
-- unless the server's clock was ahead when it was set. An operation that finds such a lease sets it back.
--
-- CLIENT is the id of the client whose process has the claim, behind a "-" when the server refuses its
-- messages. LABEL is "PID<tab>HOST<tab>PROGRAM[<tab>NOTE]". Times come from TIME, the server's clock. Tokens
-- are text of 19 digits, whatever the clock shows: text of one width compares as the numbers do, and
-- Lua's own numbers end at 2^53.

local function names(key)
  local head, tail = string.match(key, '^(lockkit:%a+)(:.*)$')
  return { key = key, broken = head .. '.broken' .. tail, limit = head .. '.limit' .. tail, waiter = 1, next = 1, count = 0,
           holders = 0, weight = 0, soonest = FAR, expires = 0, at = 0, longest = 0, last = 0, gaps = {} }
end

-- When memory is full (`maxmemory`), Redis refuses the first write of a script unless it takes no
-- memory, and none of the later ones. An operation that must get through begins with this write, which
-- changes nothing, whatever there is at that key.
local function write_first(queue)
  redis.pcall('HDEL', queue.broken, '')
end

local function padded(digits)
  return string.rep('0', 19 - #digits) .. digits
end

-- The claim of a queue that is one string; nothing when the text is not one.
local function unpack_single(text)
  local token, id, hold, wait, client, label = string.match(text,
    '^(%d+) (%x+) (%d+) (%d+) (%S+) (.*)$')
  if id and #id == 32 and #token == 19 then
    return { id = id, token = token, hold = hold, wait = wait, client = client, label = label }
  end
end

local function read_claim(queue, sequence)
  local text = redis.call('HGET', queue.key, sequence)
  if not text then return end
  local ends, id, mode, token, held, queued, broken, weight, hold, wait, client, label = string.match(text,
    '^(%d+) (%x+) (%a) (%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if not ends then error('a claim of unknown form') end
  sequence = tonumber(sequence)
  return { sequence = sequence, holds = sequence < queue.waiter, ends = tonumber(ends), id = id, mode = mode, token = token,
           held = held, queued = queued, broken = broken, weight = tonumber(weight), hold = hold,
           wait = wait, client = client, label = label }
end

local function find_claim(queue, id)
  local sequence = redis.call('HGET', queue.key, id)
  return sequence and read_claim(queue, sequence)
end

local function write_claim(queue, c)
  redis.call('HSET', queue.key, c.sequence, table.concat({ string.format('%013.0f', c.ends), c.id, c.mode, c.token,
    c.held, c.queued, c.broken, string.format('%.0f', c.weight), c.hold, c.wait, c.client, c.label }, ' '))
end

-- The sequence numbers of all claims, in their order.
local function sequences(queue)
  local found = {}
  for _, field in ipairs(redis.call('HKEYS', queue.key)) do
    found[#found + 1] = #field < 32 and tonumber(field) or nil
  end
  table.sort(found)
  return found
end

local function note_end(queue, ends)
  queue.soonest, queue.last = math.min(queue.soonest, ends), math.max(queue.last, ends)
end

-- Leases end on whole milliseconds; the one that has begun does not count. `write_claim` follows.
local function set_end(queue, c, ttl)
  c.ends = math.min(now + 1 + ttl, FAR)
  note_end(queue, c.ends)
end

local function is_muted(client)
  return string.sub(client, 1, 1) == '-'
end

-- Adds a claim at the end, with a lease of so many ms.
local function append(queue, c, ttl)
  c.sequence, queue.next, queue.count = queue.next, queue.next + 1, queue.count + 1
  queue.longest = math.max(queue.longest, c.wait)
  if is_muted(c.client) and not queue.muted then queue.muted = c.sequence end
  set_end(queue, c, ttl)
  write_claim(queue, c)
  redis.call('HSET', queue.key, c.id, c.sequence)
end

-- The first claim behind this number whose client publishes nothing.
local function find_muted(queue, behind)
  queue.muted = nil
  for _, sequence in ipairs(sequences(queue)) do
    if sequence > behind and is_muted(read_claim(queue, sequence).client) then
      queue.muted = sequence
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
  local remaining, longer = math.max(tonumber(ttl), left_of_single(key, c)), tonumber(ttl) > tonumber(c.hold)
  -- Takes no memory: when it is full, this write and those behind it get through.
  redis.call('PEXPIRE', key, string.format('%.0f', remaining))
  if longer or (token and token > c.token) then
    if longer then c.hold = ttl end
    if token and token > c.token then c.token = token end
    redis.call('SET', key, table.concat({ c.token, c.id, c.hold, c.wait, c.client, c.label }, ' '), 'PX',
      string.format('%.0f', remaining))
  end
  return c.token
end

-- The string becomes a hash.
local function expand(queue)
  local c, remaining = queue.single, left_of_single(queue.key, queue.single)
  redis.call('DEL', queue.key)
  c.mode, c.weight, c.broken = 'x', tonumber(CAPACITY), '0'
  c.held = string.sub(c.token, -16) -- the token is when it was taken, as good as always
  c.queued = c.held
  append(queue, c, remaining)
  queue.waiter, queue.holders, queue.weight, queue.capacity = queue.next, 1, c.weight, c.weight
end

-- How many of the gaps are before this number, and how many numbers they have.
local function gaps_before(queue, sequence)
  local gaps, numbers = 0, 0
  for i, gap in ipairs(queue.gaps) do
    if gap[1] > sequence then break end
    gaps, numbers = i, numbers + gap[2] - gap[1] + 1
  end
  return gaps, numbers
end

-- The number of a claim that waited becomes a gap, together with those next to it; there is none behind the last claim.
local function add_gap(queue, sequence)
  local gaps, at = queue.gaps, gaps_before(queue, sequence)
  local first, last = sequence, sequence
  if gaps[at + 1] and gaps[at + 1][1] == sequence + 1 then last = table.remove(gaps, at + 1)[2] end
  if gaps[at] and gaps[at][2] == sequence - 1 then
    first, queue.gaps_changed = table.remove(gaps, at)[1], true
    at = at - 1
  end
  if last == queue.next - 1 then
    queue.next = first
  else
    table.insert(gaps, at + 1, { first, last })
    queue.gaps_changed = true
  end
end

-- Removes a claim. `promote` follows.
local function remove(queue, c)
  queue.count = queue.count - 1
  if c.holds then
    queue.holders, queue.weight = queue.holders - 1, queue.weight - c.weight
  else
    add_gap(queue, c.sequence)
  end
  carried[c.id] = nil -- promoted by this very call, perhaps
  redis.call('HDEL', queue.key, c.sequence, c.id)
  if queue.muted == c.sequence then find_muted(queue, c.sequence) end
end

-- Promotes the claims that hold now, and tells their clients; not that of `mine`, which the answer to
-- this call is about. One that was broken while it waited keeps its lease, and its client is to poll: it holds no
-- lock, but keeps others out until that lease ends.
local function promote(queue, mine)
  local promoted
  while queue.waiter < queue.next do
    local gap = queue.gaps[1]
    if gap and gap[1] == queue.waiter then
      table.remove(queue.gaps, 1)
      queue.waiter, queue.gaps_changed = gap[2] + 1, true
    end
    local c = read_claim(queue, queue.waiter)
    if c and queue.weight + c.weight > queue.capacity then
      -- Usually the next one learns that it is the next from its own renewal. When the one before
      -- it may end sooner than that, it gets a message.
      if promoted and c.id ~= mine and (promoted.ends - now - 1) * 3 < tonumber(c.wait) then
        notify(c.client, 'poll ' .. c.id, queue)
      end
      return
    end
    queue.waiter = queue.waiter + 1
    if c then
      queue.holders, queue.weight = queue.holders + 1, queue.weight + c.weight
      c.held = string.sub(padded(now_us), -16)
      if c.broken == '0' then set_end(queue, c, c.hold) end
      write_claim(queue, c)
      if c.id ~= mine then
        promoted = c
        if c.broken == '0' then
          tell(c.client, c.id, c.token, queue)
        else
          notify(c.client, 'poll ' .. c.id, queue)
        end
      end
    end
  end
end

-- Reads what a queue has in common: `kind` is what its key is, "none" for a lock that is free. Changes
-- nothing. Nothing, and the key, when that has a value that is not lockkit's.
local function find(key)
  local queue = names(key)
  queue.kind = redis.call('TYPE', key).ok
  if queue.kind == 'string' then
    queue.single = unpack_single(redis.call('GET', key))
    if not queue.single then return nil, key end
  elseif queue.kind == 'hash' then
    local words = { 'waiter', 'next', 'count', 'holders', 'weight', 'capacity', 'soonest', 'expires', 'at', 'longest' }
    local meta = redis.call('HMGET', key, 'muted', 'unpublished', 'gaps', unpack(words))
    for i, word in ipairs(words) do
      queue[word] = tonumber(meta[i + 3])
      if not queue[word] then return nil, key end
    end
    queue.muted, queue.unpublished = tonumber(meta[1]), meta[2]
    queue.was_muted = queue.muted
    if meta[3] then queue.gaps = cjson.decode(meta[3]) end
  elseif queue.kind ~= 'none' then
    return nil, key
  end
  return queue
end

-- The same; an error when it is not lockkit's.
local function must_find(key)
  local queue, foreign = find(key)
  if not queue then refuse(foreign) end
  return queue
end

-- Prunes expired claims. Where the clock was ahead when leases were set, they last for their ttl from now on, and
-- not until it gets there again.
local function prune(queue, mine)
  local ended = false
  queue.soonest, queue.expires = FAR, 0
  for _, sequence in ipairs(sequences(queue)) do
    local ends = tonumber(string.sub(redis.call('HGET', queue.key, sequence), 1, 13))
    if ends <= now then
      ended = true
      remove(queue, read_claim(queue, sequence))
    elseif queue.at > now then
      local c = read_claim(queue, sequence)
      set_end(queue, c, math.min(ends - now - 1, tonumber(c.holds and c.hold or c.wait)))
      write_claim(queue, c)
    else
      note_end(queue, ends)
    end
  end
  if ended then promote(queue, mine) end
end

-- Makes a queue that was found one to work with, without expired claims. A lock that is free is a queue
-- without claims.
local function open(queue, mine)
  if queue.kind == 'string' then expand(queue) end
  if queue.soonest <= now or queue.at > now then prune(queue, mine) end
end

-- Writes back what the queue has in common. The last one out takes the key along.
local function close(queue)
  if queue.count == 0 then
    redis.call('DEL', queue.key)
    return
  end
  local has_grown = queue.last > queue.expires
  if has_grown then queue.expires = queue.last end
  redis.call('HSET', queue.key, 'waiter', queue.waiter, 'next', queue.next, 'count', queue.count, 'holders', queue.holders,
    'weight', queue.weight, 'capacity', queue.capacity, 'soonest', queue.soonest, 'expires', queue.expires, 'at', now,
    'longest', queue.longest)
  if queue.muted then
    redis.call('HSET', queue.key, 'muted', queue.muted)
  elseif queue.was_muted then
    redis.call('HDEL', queue.key, 'muted')
  end
  if queue.gaps_changed then redis.call('HSET', queue.key, 'gaps', cjson.encode(queue.gaps)) end
  if has_grown then redis.call('PEXPIREAT', queue.key, queue.expires) end
end

-- `which` is "hold" or "wait".
local function extend(queue, c, which, ttl)
  local is_longer, is_later = tonumber(ttl) > tonumber(c[which]), now + 1 + ttl > c.ends
  if is_longer then
    c[which] = ttl
    queue.longest = math.max(queue.longest, c.wait)
  end
  if is_later then set_end(queue, c, ttl) end
  if is_longer or is_later then write_claim(queue, c) end
end

-- What became of a claim that is not in the queue: {RECORD} when it was broken, otherwise 0.
local function claim_end(queue, id)
  local record = redis.pcall('HGET', queue.broken, id)
  return type(record) == 'string' and { record } or 0
end

-- After how many ms a waiting claim is to poll, at the latest, if messages about its grant may be refused:
-- as often as where there is no subscription.
local function poll_pace(queue, c, first)
  if not queue.unpublished and (not queue.muted or c.sequence <= queue.muted) then return end
  if not first then return 1000 end
  return math.floor(math.max(10, math.min(100, (now_us - c.queued) / 10000)))
end

-- The messages of this client are refused by now: claims behind it are to know.
local function mark_muted(queue, c)
  c.client = '-' .. c.client
  write_claim(queue, c)
  queue.muted = math.min(queue.muted or c.sequence, c.sequence)
end

-- Renews a claim with these ttls, and gives its state:
--   TOKEN            it holds
--   {AHEAD, POLL}    it waits behind so many, and is to poll after POLL ms, unless it is notified or
--                    renewed before: the first waiter when any lease may end, others
--                    when that of the one right before them does; sooner where messages are refused
--   {RECORD}         it was broken
--   0                it is not in the queue
local function renew(queue, id, hold, wait)
  local c = find_claim(queue, id)
  if not c then return claim_end(queue, id) end
  if c.broken == '1' then return { redis.call('HGET', queue.broken, id) or '' } end
  if MUTED and not is_muted(c.client) then mark_muted(queue, c) end
  if c.holds then
    extend(queue, c, 'hold', hold)
    return c.token
  end
  extend(queue, c, 'wait', wait)
  local gaps, numbers = gaps_before(queue, c.sequence)
  local ahead, before, poll = c.sequence - queue.waiter - numbers, c.sequence - 1, queue.soonest
  if ahead > 0 then
    local gap = queue.gaps[gaps]
    if gap and gap[2] == before then before = gap[1] - 1 end
    poll = read_claim(queue, before).ends
  end
  local pace = poll_pace(queue, c, ahead == 0)
  return { queue.holders + ahead, pace and math.min(pace, poll - now) or poll - now }
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
