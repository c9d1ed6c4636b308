-- Puts claims at the ends of their lists, in this order, or says that they cannot hold.
--
-- KEYS[2i-1]  the lock of the i-th claim    KEYS[2i]  the counter of tokens of its bucket
-- ARGV[2i-1]  the claim as a string: "ID TOKEN HOLD_MS WAIT_MS CLIENT SHOWN". TOKEN, 19 digits, is
--             what the client proposes: greater than every token that it has seen
-- ARGV[2i]    its hold ttl in ms
-- ARGV[2n+i]  of n claims; absent when empty for all: "[t][!][ MODE WEIGHT CAPACITY]", with "t" for a
--             try, "!" when the client does not know the server's clock and the server is to choose
--             the token, and MODE ("s" or "p") unless the claim is exclusive
--
-- 1, when each of them holds with the token proposed; otherwise an answer to each:
--   1                       it holds, with the token proposed
--   {"holds", TOKEN}        it holds
--   {"holds", TOKEN, US}    it holds, and this is the server's time: the proposal was behind
--   {"waits", AHEAD, LOOK}  it is in line (see `renew` in line.lua)
--   {"busy"}                it cannot hold, and is not in line
--   {"limit", IN_USE}       the semaphore has another limit
--   {"broken", RECORD}      it was in line, and was broken
--   an error                of this claim only
-- An error for all of them when memory is full: then nothing was written.
--
-- The fast path costs two commands: a claim that finds no key takes the lock, and then the counter
-- says whether the proposed token is greater than all before it. If not (the counter is new, the
-- data were lost, another client was faster), the server chooses, and the counter is as it was: other
-- claims of this call may have the same bucket.
local call = redis.call
local count = (#KEYS - #KEYS % 2) / 2 -- in a cluster there is one more key
local rest, sharing
for i = 1, count do
  local key, text, how = KEYS[2 * i - 1], ARGV[2 * i - 1], ARGV[2 * count + i]
  local taken, holds
  if how and #how > 2 then
    sharing = sharing or {}
    sharing[key] = true -- who comes to this list later stays behind it
  elseif not (sharing and sharing[key])
    and call('SET', key, text, 'NX', 'PX', ARGV[2 * i]) then
    taken = true
    if not how or how == '' or how == 't' then
      local counter, mine = KEYS[2 * i], string.sub(text, 34, 52)
      local last = call('GETSET', counter, mine)
      holds = last and last < mine
      if not last then
        call('DEL', counter)
      elseif not holds then
        call('SET', counter, last)
      end
    end
  end
  if not holds then
    rest = rest or {}
    rest[#rest + 1] = { i, taken }
  end
end
if not rest then return 1 end

redis.call('SETRANGE', KEYS[2], 0, '') -- changes nothing, and is refused when memory is full

-- #include line.lua

local function acquire(i, taken)
  local key, counter, text, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i - 1], ARGV[2 * i]
  local id, token, hold, wait, client, shown =
    string.match(text, '^(%x+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  local how = ARGV[2 * count + i] or ''
  local try, unclocked, mode = string.match(how, '^(t?)(!?) ?(%a?)')
  local weight, capacity = string.match(how, '(%d+) (%d+)$')
  local exclusive = mode == ''
  weight, capacity = tonumber(weight or CAPACITY), tonumber(capacity or CAPACITY)
  try = try == 't'

  -- The lock as one string, with a token of the server's choice.
  local function take_alone()
    local chosen = next_token(counter, unclocked .. token)
    redis.call('SET', key, table.concat({ id, chosen, hold, wait, client, shown }, ' '), 'PX', ttl)
    return { 'holds', chosen, now_us }
  end

  if taken then return take_alone() end

  local alone = redis.pcall('GET', key)
  if type(alone) == 'string' then
    if string.sub(alone, 1, 32) == id then
      if tonumber(ttl) > redis.call('PTTL', key) then redis.call('PEXPIRE', key, ttl) end
      return { 'holds', string.sub(alone, 34, 52) }
    end
    if try then return { 'busy' } end
  end

  local list = open(key, id)

  if redis.call('ZRANK', list.line, id) then -- asked before: the answer was lost
    local state = renew(list, id, hold, wait)
    local answer
    if type(state) == 'string' then
      answer = { 'holds', state }
    elseif not state[2] then
      answer = { 'broken', state[1] }
    elseif try then
      remove(list, id)
      promote(list, id)
      answer = { 'busy' }
    else
      answer = { 'waits', state[1], state[2] }
    end
    close(list)
    return answer
  end

  local length = redis.call('ZCARD', list.line)
  if length == 0 then
    redis.call('DEL', list.key, list.line, list.ends)
    if exclusive then return take_alone() end
    local given = mode == 'p' and redis.call('GET', list.limit)
    list.capacity = tonumber(given or capacity)
  end
  if list.capacity ~= capacity then
    local in_use = list.capacity
    close(list)
    return { 'limit', in_use }
  end

  if try and (length > list.holders or list.weight + weight > capacity) then
    close(list)
    return { 'busy' }
  end

  local chosen = next_token(counter, unclocked .. token)
  write_claim(list, id, { mode = exclusive and 'x' or mode, token = chosen, weight = weight, hold = hold,
                          wait = wait, client = client, queued = now_us, held = '0',
                          broken = '0', shown = shown })
  append(list, id)
  set_end(list, id, wait)
  promote(list, id)
  local answer
  if length < list.holders then
    answer = { 'holds', chosen }
  else
    local state = renew(list, id, hold, wait)
    answer = { 'waits', state[1], state[2] }
  end
  close(list)
  return answer
end

local answers = {}
for i = 1, count do answers[i] = 1 end
for _, claim in ipairs(rest) do answers[claim[1]] = attempt(acquire, unpack(claim)) end
return refused or answers
