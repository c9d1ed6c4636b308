-- The rule of the queue, for lists in which somebody waits or shares. No script of its own: each
-- verb includes it behind its fast path, so that this code runs only where it is needed.
--
-- A list has two forms. One exclusive claim for which nobody waits is one string at the lock's key:
-- "TOKEN ID HOLD_MS WAIT_MS CLIENT SHOWN", which Redis itself ends. Every other list is
--   the lock's key   hash: `holders`, `weight` (of those who hold), `capacity`, `next` (place), `at`
--                    (the millisecond in which leases were last set), and for each claim a field of the name of its id: "MODE TOKEN WEIGHT HOLD_MS WAIT_MS
--                    CLIENT QUEUED_US HELD_US BROKEN SHOWN". Where messages are refused also `mute`
--                    (the first place of a client that publishes none) and `unheard` (the last
--                    message about this list was not sent)
--   ….line….         sorted set: claims by their place in line
--   ….ends….         sorted set: claims by the millisecond at which their lease ends
-- A semaphore that was given a limit has it, for good, in the string ….limit….
-- These three expire with the last lease, and are deleted with the last claim. Those who hold are the
-- first `holders` of the line. The keys beside the lock's own differ from it in their first word
-- and share its hash tag, so that they are in the same slot.
--
-- HOLD_MS and WAIT_MS are the longest that the claim was renewed with: no lease lasts longer from now on,
-- unless the server's clock was ahead when it was set. Whatever finds such a lease sets it back.
--
-- CLIENT is the id of the client in whose process the claim is, behind a "-" when the server refuses its
-- messages. SHOWN is "PID<tab>HOST<tab>PROGRAM[<tab>NOTE]". Times come from TIME, the server's clock. Tokens
-- are text of 19 digits, whatever the clock shows: text of one width compares as the numbers do, and
-- Lua's own numbers end at 2^53.
--
-- Any of the keys may be gone (evicted, or deleted by hand): without the lock's own key there is no
-- list, and what else it had is restored.

local CAPACITY = '2147483647'
-- From here on Lua's numbers are not exact.
local LARGEST = '0009007199254740991'

-- #include answer.lua

-- `clock`, the answer of TIME, is there already: one script has one time.
local now_us = string.format('%s%06d', clock[1], clock[2])
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function written(digits)
  return string.rep('0', 19 - #digits) .. digits
end

local function names(key)
  local head, tail = string.match(key, '^(lockkit:%a+)(:.*)$')
  return { key = key, line = head .. '.line' .. tail, ends = head .. '.ends' .. tail,
           broken = head .. '.broken' .. tail, limit = head .. '.limit' .. tail,
           holders = 0, weight = 0, next = 1 }
end

-- When memory is full (`maxmemory`), Redis refuses the first write of a script unless it takes no
-- memory, and none of the later ones. A verb that must get through begins with this write, which
-- changes nothing.
local function insist(list)
  redis.call('ZREM', list.ends, '')
end

-- A list that is one string, taken apart; nothing when it is not one.
local function unpack_alone(text)
  local token, id, hold, wait, client, shown = string.match(text,
    '^(%d+) (%x+) (%d+) (%d+) (%S+) (.*)$')
  if id and #id == 32 and #token == 19 then
    return { id = id, token = token, hold = hold, wait = wait, client = client, shown = shown }
  end
end

local function unpack_claim(text)
  local mode, token, weight, hold, wait, client, queued, held, broken, shown = string.match(text,
    '^(%a) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d) (.*)$')
  if not mode then error('a claim of unknown form') end
  return { mode = mode, token = token, weight = tonumber(weight), hold = hold, wait = wait, client = client,
           queued = queued, held = held, broken = broken, shown = shown }
end

local function write_claim(list, id, c)
  redis.call('HSET', list.key, id, table.concat({ c.mode, c.token, string.format('%d', c.weight),
    c.hold, c.wait, c.client, c.queued, c.held, c.broken, c.shown }, ' '))
end

local function read_claim(list, id)
  local text = redis.call('HGET', list.key, id)
  return text and unpack_claim(text)
end

-- Leases end on whole milliseconds; the one that has begun does not count.
local function set_end(list, id, ttl)
  redis.call('ZADD', list.ends, string.format('%.0f', now + 1 + ttl), id)
end

local function is_mute(client)
  return string.sub(client, 1, 1) == '-'
end

-- The last in line is this one.
local function append(list, id, client)
  redis.call('ZADD', list.line, string.format('%.0f', list.next), id)
  if is_mute(client) and not list.mute then list.mute = list.next end
  list.next = list.next + 1
end

-- The first claim, from this rank on, whose client publishes nothing.
local function find_mute(list, rank)
  list.mute = nil
  for _, id in ipairs(redis.call('ZRANGE', list.line, rank, -1)) do
    local c = read_claim(list, id)
    if c and is_mute(c.client) then
      list.mute = tonumber(redis.call('ZSCORE', list.line, id))
      return
    end
  end
end

-- What is left of the lease of the only claim, of a list that is one string.
local function left_alone(key, c)
  return math.min(redis.call('PTTL', key), tonumber(c.hold))
end

-- Has that lease last for so many ms at least, and gives it this token if it is greater. Writes in any
-- case: WAIT waits for what its own connection wrote.
local function renew_alone(key, c, ttl, token)
  local left, longer = math.max(tonumber(ttl), left_alone(key, c)), tonumber(ttl) > tonumber(c.hold)
  -- Takes no memory: when it is full, this write and those behind it get through.
  redis.call('PEXPIRE', key, string.format('%.0f', left))
  if longer or (token and token > c.token) then
    if longer then c.hold = ttl end
    if token and token > c.token then c.token = token end
    redis.call('SET', key, table.concat({ c.token, c.id, c.hold, c.wait, c.client, c.shown }, ' '), 'PX',
      string.format('%.0f', left))
  end
  return c.token
end

-- The string becomes a hash.
local function grow(list)
  local c = list.alone
  local left = left_alone(list.key, c)
  redis.call('DEL', list.key, list.line, list.ends)
  local since = string.sub(c.token, -16) -- the token is when it was taken, as good as always
  write_claim(list, c.id, { mode = 'x', token = c.token, weight = CAPACITY, hold = c.hold, wait = c.wait,
                            client = c.client, queued = since, held = since, broken = '0', shown = c.shown })
  append(list, c.id, c.client)
  redis.call('ZADD', list.ends, string.format('%.0f', now + 1 + left), c.id)
  list.holders, list.weight, list.capacity = 1, tonumber(CAPACITY), tonumber(CAPACITY)
end

-- Takes a claim out; false when it is not there. Who follows is `promote`'s business.
local function remove(list, id)
  local rank = redis.call('ZRANK', list.line, id)
  if not rank then return false end
  if rank < list.holders then
    list.holders = list.holders - 1
    list.weight = list.weight - read_claim(list, id).weight
  end
  local first_mute = list.mute and tonumber(redis.call('ZSCORE', list.line, id)) == list.mute
  redis.call('HDEL', list.key, id)
  redis.call('ZREM', list.line, id)
  redis.call('ZREM', list.ends, id)
  if first_mute then find_mute(list, rank) end
  return true
end

-- Lets those begin to hold who now do, and tells their clients; not the client of `mine`, which
-- learns it from the answer to this call.
local function promote(list, mine)
  while true do
    local id = redis.call('ZRANGE', list.line, list.holders, list.holders)[1]
    if not id then return end
    local c = read_claim(list, id)
    if list.weight + c.weight > list.capacity then
      -- Usually the next one learns that it is the next from its own renewal. When the one before
      -- it may end sooner than that, it is told.
      local last = list.told and read_claim(list, list.told)
      if last and id ~= mine and tonumber(last.hold) * 3 < tonumber(c.wait) then
        tell(c.client, 'look ' .. id, list)
      end
      return
    end
    list.holders = list.holders + 1
    list.weight = list.weight + c.weight
    c.held = now_us
    write_claim(list, id, c)
    set_end(list, id, c.hold)
    if id ~= mine then
      list.told = id
      tell(c.client, 'granted ' .. id .. ' ' .. c.token, list)
    end
  end
end

-- The claims of a list in their order, which is also that of their tokens.
local function in_order(list)
  local ids = redis.call('ZRANGE', list.line, 0, -1)
  if ids[1] then return ids end
  local fields, tokens = redis.call('HGETALL', list.key), {}
  for i = 1, #fields, 2 do
    if #fields[i] == 32 then
      ids[#ids + 1] = fields[i]
      tokens[fields[i]] = unpack_claim(fields[i + 1]).token
    end
  end
  table.sort(ids, function(a, b) return tokens[a] < tokens[b] end)
  return ids
end

-- Makes the line, or the ends, of a list that has lost them. Nobody knows when its leases end: each
-- of them lasts for a whole ttl from now.
local function restore(list)
  local ids = in_order(list)
  if redis.call('EXISTS', list.line) == 0 then
    list.next, list.mute = 1, nil
    for _, id in ipairs(ids) do append(list, id, read_claim(list, id).client) end
  end
  if redis.call('EXISTS', list.ends) == 0 then
    for rank, id in ipairs(ids) do
      local c = read_claim(list, id)
      set_end(list, id, rank <= list.holders and c.hold or c.wait)
    end
  end
end

-- Reads what a list has in common: `kind` is what its key is, "none" for a lock that is free. Changes
-- nothing. Nothing, and the key at fault, when one of its keys has a value that is not lockkit's.
local function find(key)
  local list = names(key)
  list.kind = redis.call('TYPE', key).ok
  if list.kind == 'string' then
    list.alone = unpack_alone(redis.call('GET', key))
    if not list.alone then return nil, key end
  elseif list.kind == 'hash' then
    local meta = redis.call('HMGET', key, 'holders', 'weight', 'capacity', 'next', 'mute', 'unheard', 'at')
    list.holders, list.weight = tonumber(meta[1]), tonumber(meta[2])
    list.capacity, list.next = tonumber(meta[3]), tonumber(meta[4])
    list.mute, list.unheard, list.at = tonumber(meta[5]), meta[6], tonumber(meta[7])
    list.was_mute = list.mute
    if not (list.holders and list.weight and list.capacity and list.next) then return nil, key end
  elseif list.kind ~= 'none' then
    return nil, key
  end
  for _, beside in ipairs({ list.line, list.ends }) do
    local kind = redis.call('TYPE', beside).ok
    if kind == 'none' then
      list.incomplete = true
    elseif kind ~= 'zset' then
      return nil, beside
    end
  end
  return list
end

-- The same; an error when it is not lockkit's.
local function demand(key)
  local list, foreign = find(key)
  if not list then refuse(foreign) end
  return list
end

-- The clock was ahead when leases were set: they last for their ttl from now on, and not until it gets
-- there again.
local function set_back(list)
  for rank, id in ipairs(redis.call('ZRANGE', list.line, 0, -1)) do
    local c = read_claim(list, id)
    local ttl = tonumber(rank <= list.holders and c.hold or c.wait)
    local ends = redis.call('ZSCORE', list.ends, id)
    if ends and tonumber(ends) > now + 1 + ttl then set_end(list, id, ttl) end
  end
end

-- Makes a list that was found one to work with, and takes out whose lease has ended. A lock that is
-- free is a list without claims.
local function open(list, mine)
  if list.kind == 'string' then
    grow(list)
  elseif list.kind == 'none' then
    redis.call('DEL', list.line, list.ends) -- of a list whose own key is gone
  elseif list.incomplete then
    restore(list)
  end
  if list.at and list.at > now then set_back(list) end
  local ended = redis.call('ZRANGEBYSCORE', list.ends, '-inf', string.format('%.0f', now))
  for _, id in ipairs(ended) do remove(list, id) end
  if ended[1] then promote(list, mine) end
  return list
end

-- Writes back what the list has in common. The last one out takes the keys along.
local function close(list)
  local last = redis.call('ZREVRANGE', list.ends, 0, 0, 'WITHSCORES')
  if not last[1] then
    redis.call('DEL', list.key, list.line, list.ends)
    return
  end
  redis.call('HSET', list.key, 'holders', string.format('%d', list.holders), 'weight',
    string.format('%.0f', list.weight), 'capacity', string.format('%.0f', list.capacity), 'next',
    string.format('%.0f', list.next), 'at', string.format('%.0f', now))
  if list.mute then
    redis.call('HSET', list.key, 'mute', string.format('%.0f', list.mute))
  elseif list.was_mute then
    redis.call('HDEL', list.key, 'mute')
  end
  for _, key in ipairs({ list.key, list.line, list.ends }) do
    redis.call('PEXPIREAT', key, last[2])
  end
end

-- `which` is "hold" or "wait".
local function extend(list, id, c, which, ttl)
  local old = tonumber(redis.call('ZSCORE', list.ends, id))
  if now + 1 + ttl > old then set_end(list, id, ttl) end
  if tonumber(ttl) > tonumber(c[which]) then
    c[which] = ttl
    write_claim(list, id, c)
  end
end

-- What became of a claim that is not in line: {RECORD} when it was broken, otherwise 0.
local function ended(list, id)
  local record = redis.pcall('HGET', list.broken, id)
  return type(record) == 'string' and { record } or 0
end

-- When a claim that waits is to look again, at the latest, if messages about its turn may be refused:
-- as often as where nobody listens for them.
local function unheard_pace(list, id, c, first)
  if not list.unheard then
    if not list.mute or tonumber(redis.call('ZSCORE', list.line, id)) <= list.mute then return end
  end
  if not first then return 1000 end
  return math.floor(math.max(10, math.min(100, (now_us - c.queued) / 10000)))
end

-- The messages of this client are refused by now: who is behind it is to know.
local function mute_claim(list, id, c)
  c.client = '-' .. c.client
  write_claim(list, id, c)
  local place = tonumber(redis.call('ZSCORE', list.line, id))
  list.mute = math.min(list.mute or place, place)
end

-- Renews a claim with these ttls, and says how it stands:
--   TOKEN            it holds
--   {AHEAD, LOOK}    it waits behind so many, and is to look again by itself after LOOK ms, should
--                    it not be told or renewed before: the next in line when any lease ends, others
--                    when that of the one right before them does; sooner where messages are refused
--   {RECORD}         it was broken
--   0                it is not in line
local function renew(list, id, hold, wait)
  local rank = redis.call('ZRANK', list.line, id)
  if not rank then return ended(list, id) end
  local c = read_claim(list, id)
  if c.broken == '1' then return { redis.call('HGET', list.broken, id) or '' } end
  if MUTED and not is_mute(c.client) then mute_claim(list, id, c) end
  if rank < list.holders then
    extend(list, id, c, 'hold', hold)
    return c.token
  end
  extend(list, id, c, 'wait', wait)
  local look
  if rank == list.holders then
    look = redis.call('ZRANGE', list.ends, 0, 0, 'WITHSCORES')[2]
  else
    look = redis.call('ZSCORE', list.ends, redis.call('ZRANGE', list.line, rank - 1, rank - 1)[1])
  end
  local pace = unheard_pace(list, id, c, rank == list.holders)
  return { rank, pace and math.min(pace, look - now) or look - now }
end

-- The limit that a semaphore was given for good, if any.
local function given_limit(list)
  local limit = redis.pcall('GET', list.limit)
  if not limit then return nil end
  if type(limit) == 'table' or not string.find(limit, '^%d+$') then refuse(list.limit) end
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
  local last, token = last_token(counter), written(now_us)
  if least > token then token = least end
  if last and last >= token then
    if last < LARGEST then
      token = string.format('%019.0f', last + 1)
    else
      -- Redis counts exactly, but text without zeros in front.
      redis.call('SET', counter, (string.gsub(last, '^0+', '')))
      redis.call('INCR', counter)
      token = written(redis.call('GET', counter))
    end
  end
  redis.call('SET', counter, token)
  return token
end
