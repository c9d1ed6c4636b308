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
-- Within {"granted", …} where other claims of the client hold now: see `speak` in answer.lua.
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
local probe = redis.pcall('SETRANGE', KEYS[2], 0, '')
if type(probe) == 'table' and string.find(probe.err, 'OOM', 1, true) then return probe end

-- #include claims.lua
-- #include queue.lua
-- #include enqueue.lua

for _, claim in ipairs(rest) do
  local i, taken = claim[1], claim[2]
  answers[i] = attempt(acquire, KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i],
    ARGV[3 * count + i] or '', taken)
end
return speak(refused or answers)
