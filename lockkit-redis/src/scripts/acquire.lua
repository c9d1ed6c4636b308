-- Adds claims at the ends of their queues, in this order, or says that they cannot hold.
--
-- KEYS[2i-1]  the lock of the i-th claim    KEYS[2i]  the counter of tokens of its bucket
-- ARGV[3i-2]  the claim as a string: " ID HOLD_MS WAIT_MS CLIENT LABEL"
-- ARGV[3i-1]  its hold ttl in ms
-- ARGV[3i]    the least token that the client accepts, 19 digits: greater than every one it has seen
-- ARGV[3n+i]  of n claims; absent when empty for all: "[t][ MODE WEIGHT CAPACITY]", with "t" for a
--             try, and MODE ("s" or "p") unless the claim is exclusive
--
-- TOKEN alone, when there is one claim and it holds at once; otherwise an answer to each:
--   TOKEN                   it holds
--   {"waits", AHEAD, POLL}  it waits (see `renew` in queue.lua)
--   {"busy"}                it cannot hold, and is not in the queue
--   {"limit", IN_USE}       the semaphore has another limit
--   {"broken", RECORD}      it was in the queue, and was broken
--   an error                of this claim only
-- An error for all of them when memory is full: then nothing was written.
--
-- A token is at least the server's clock when the claim comes here: the counter does not know
-- of tokens that were given before older data came back.
--
-- The fast path costs two commands a claim, and one a call: a claim that finds no key takes the lock,
-- and then the counter says whether its token is greater than all before it. If not (tokens were
-- raised, the clock went back), the counter decides, and is as it was: other claims of this call may
-- have the same bucket.
local call, safecall = redis.call, redis.pcall
local clock, clocked = call('TIME'), nil
if #clock[1] == 10 and #clock[2] == 6 then
  clocked = '000' .. clock[1] .. clock[2] -- half as long as the other way
else
  clocked = string.format('%013d%06d', clock[1], clock[2])
end
-- One claim that is asked for by itself: as below, in nine tenths of the time.
if #ARGV < 5 and (not ARGV[4] or ARGV[4] == 't') then
  local token = ARGV[3] < clocked and clocked or ARGV[3]
  if call('SET', KEYS[1], token .. ARGV[1], 'NX', 'PX', ARGV[2]) then
    local last = safecall('GETSET', KEYS[2], token)
    if not last or (#last == 19 and last < token and tonumber(last)) then return token end
    if type(last) == 'string' then call('SET', KEYS[2], last) end
    call('DEL', KEYS[1])
  end
end

local count = (#KEYS - #KEYS % 2) / 2 -- in a cluster there is one more key
local answers, given, rest, sharing = {}, {}, nil, nil
for i = 1, count do
  local key, counter, options = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * count + i]
  local taken, holds
  if options and #options > 1 then
    sharing = sharing or {}
    sharing[key] = true -- later claims of this queue stay behind it
  elseif not (sharing and sharing[key]) then
    local token, before = ARGV[3 * i], given[counter]
    if token < clocked then token = clocked end
    if before and before >= token then token = string.format('%019.0f', before + 1) end
    taken = call('SET', key, token .. ARGV[3 * i - 2], 'NX', 'PX', ARGV[3 * i - 1])
    if taken then
      local last = safecall('GETSET', counter, token)
      if not last or (#last == 19 and last < token and tonumber(last)) then
        answers[i], given[counter], holds = token, token, true
      else
        if type(last) == 'string' then call('SET', counter, last) end
        if type(last) ~= 'string' or #last ~= 19 or string.find(last, '%D') then
          call('DEL', key)
          taken = nil
        end
      end
    end
  end
  if not holds then
    rest = rest or {}
    rest[#rest + 1] = { i, taken }
  end
end
if not rest then return answers end

-- Changes nothing, and is refused when memory is full.
local room = redis.pcall('SETRANGE', KEYS[2], 0, '')
if type(room) == 'table' and string.find(room.err, 'OOM', 1, true) then return room end

-- #include queue.lua

-- The same for a claim that is in the queue already: the answer was lost.
local function acquire_again(queue, id, hold, wait, try)
  local state = renew(queue, id, hold, wait)
  if type(state) == 'string' then return state end
  if not state[2] then return { 'broken', state[1] } end
  if not try then return { 'waits', state[1], state[2] } end
  remove(queue, id)
  promote(queue, id)
  return { 'busy' }
end

local function acquire(i, taken)
  local key, counter, text, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1]
  local id, hold, wait, client, label = string.match(text, '^ (%x+) (%d+) (%d+) (%S+) (.*)$')
  local token, options = ARGV[3 * i], ARGV[3 * count + i] or ''
  local try, mode = string.match(options, '^(t?) ?(%a?)')
  local weight, capacity = string.match(options, '(%d+) (%d+)$')
  local exclusive = mode == ''
  weight, capacity = tonumber(weight or CAPACITY), tonumber(capacity or CAPACITY)
  try = try == 't'

  -- The lock as one string, with a token of the counter's choice.
  local function take_single()
    local chosen = next_token(counter, token)
    redis.call('SET', key, chosen .. text, 'PX', ttl)
    return chosen
  end

  if taken then return take_single() end

  local queue = must_find(key)
  last_token(counter) -- an error, before anything is written, when it is no counter
  if queue.single and (try or queue.single.id == id) then
    if queue.single.id == id then return renew_single(key, queue.single, ttl) end
    local left = left_of_single(key, queue.single)
    if left < redis.call('PTTL', key) then redis.call('PEXPIRE', key, string.format('%.0f', left)) end
    return { 'busy' }
  end
  open(queue, id)

  if redis.call('ZRANK', queue.claims, id) then
    local answer = acquire_again(queue, id, hold, wait, try)
    close(queue)
    return answer
  end

  local length = redis.call('ZCARD', queue.claims)
  if length == 0 then
    redis.call('DEL', queue.key, queue.claims, queue.ends)
    if exclusive then return take_single() end
    queue.capacity = mode == 'p' and fixed_limit(queue) or capacity
  end
  if queue.capacity ~= capacity then
    local in_use = queue.capacity
    close(queue)
    return { 'limit', in_use }
  end

  if try and (length > queue.holders or queue.weight + weight > capacity) then
    close(queue)
    return { 'busy' }
  end

  local chosen = next_token(counter, token)
  write_claim(queue, id, { mode = exclusive and 'x' or mode, token = chosen, weight = weight, hold = hold,
                          wait = wait, client = client, queued = now_us, held = '0',
                          broken = '0', label = label })
  append(queue, id, client)
  set_end(queue, id, wait)
  promote(queue, id)
  local answer = chosen
  if length >= queue.holders then
    local state = renew(queue, id, hold, wait)
    answer = { 'waits', state[1], state[2] }
  end
  close(queue)
  return answer
end

for _, claim in ipairs(rest) do answers[claim[1]] = attempt(acquire, unpack(claim, 1, 2)) end
return speak(refused or answers)
