-- Puts a claim at the end of its list, or says that it cannot hold.
--
-- KEYS[1]  the lock          KEYS[2]  the counter of tokens of its bucket
-- ARGV[1]  the claim as a string: "ID TOKEN HOLD_MS WAIT_MS CLIENT SHOWN"
-- ARGV[2]  its hold ttl in ms
-- ARGV[3]  TOKEN, 19 digits: what the client proposes, greater than every token that it has seen.
--          With a "!" in front when the client does not know the server's clock: the server chooses.
-- ARGV[4]  "try", or "wait", which may be left out when nothing follows
-- ARGV[5…7]  mode ("s" or "p"), weight, capacity; absent for an exclusive claim
--
-- 1                     it holds, with the token proposed
-- {"holds", TOKEN}      it holds
-- {"holds", TOKEN, US}  it holds, and this is the server's time: the proposal was behind
-- {"waits", AHEAD, LOOK}  it is in line (see `renew` in line.lua)
-- {"busy"}              it cannot hold, and is not in line
-- {"limit", IN_USE}     the semaphore has another limit
-- {"broken", RECORD}    it was in line, and was broken
--
-- Refused as a whole when memory is full, before anything was written.
--
-- The fast path costs two commands: who finds no key at all takes the lock, and then the counter
-- says whether the proposed token is greater than all before it. If not (the counter is new, the
-- data were lost, another client was faster), the server chooses.
local exclusive = not ARGV[5]
local taken, last
if exclusive and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local mine = ARGV[3]
  last = redis.call('GETSET', KEYS[2], mine)
  if last and last < mine then return 1 end
  taken = true
end

-- #include line.lua

local id = string.sub(ARGV[1], 1, 32)

-- The lock as one string, with a token of the server's choice.
local function take_alone()
  if taken and not last then redis.call('DEL', KEYS[2]) end -- the counter was new
  local token = next_token(KEYS[2], ARGV[3], last)
  local rest = string.match(ARGV[1], '^%x+ %S+ (.*)$')
  redis.call('SET', KEYS[1], id .. ' ' .. token .. ' ' .. rest, 'PX', ARGV[2])
  return { 'holds', token, now_us }
end

if taken then return take_alone() end

local alone = redis.pcall('GET', KEYS[1])
if type(alone) == 'string' then
  if string.sub(alone, 1, 32) == id then
    if tonumber(ARGV[2]) > redis.call('PTTL', KEYS[1]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return { 'holds', string.sub(alone, 34, 52) }
  end
  if ARGV[4] == 'try' then return { 'busy' } end
end

redis.call('SETRANGE', KEYS[2], 0, '') -- changes nothing, and is refused when memory is full

local hold, wait, client, shown = string.match(ARGV[1], '^%x+ %S+ (%d+) (%d+) (%S+) (.*)$')
local mode = ARGV[5] or 'x'
local weight = tonumber(ARGV[6] or CAPACITY)
local capacity = tonumber(ARGV[7] or CAPACITY)

local list = open(KEYS[1], id)

if redis.call('ZRANK', list.line, id) then -- asked before: the answer was lost
  local state = renew(list, id, hold, wait)
  local answer
  if type(state) == 'string' then
    answer = { 'holds', state }
  elseif not state[2] then
    answer = { 'broken', state[1] }
  elseif ARGV[4] == 'try' then
    remove(list, id)
    promote(list, id)
    answer = { 'busy' }
  else
    answer = { 'waits', state[1], state[2] }
  end
  close(list)
  return answer
end

local count = redis.call('ZCARD', list.line)
if count == 0 then
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

if ARGV[4] == 'try' and (count > list.holders or list.weight + weight > capacity) then
  close(list)
  return { 'busy' }
end

local token = next_token(KEYS[2], ARGV[3])
write_claim(list, id, { mode = mode, token = token, weight = weight, hold = hold, wait = wait,
                        client = client, queued = now_us, held = '0', broken = '0', shown = shown })
append(list, id)
set_end(list, id, wait)
promote(list, id)
local answer
if count < list.holders then
  answer = { 'holds', token }
else
  local state = renew(list, id, hold, wait)
  answer = { 'waits', state[1], state[2] }
end
close(list)
return answer
