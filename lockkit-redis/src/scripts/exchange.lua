-- Removes a claim from a queue, and adds another at its end: for each of several locks. One contended lock
-- is passed on so within a process, one call for each time.
--
-- KEYS[2i-1]  the i-th lock    KEYS[2i]  the counter of tokens of its bucket
-- ARGV[1]     the id of the client that asks
-- ARGV[4i-2]  the id of the claim that leaves
-- ARGV[4i-1]  the exclusive claim that comes, and waits if it must: " ID HOLD_MS WAIT_MS CLIENT LABEL"
-- ARGV[4i]    its hold ttl in ms    ARGV[4i+1]  the least token that the client accepts, 19 digits
--
-- For each lock the answers of release.lua and acquire.lua, one behind the other; within {"granted", …}
-- where claims of the client hold now: see `speak` in answer.lua. When memory is full, a claim comes only
-- where one has left on the fast path, whose place it takes.
local clock = redis.call('TIME')

-- #include clock.lua
-- #include pass.lua

-- One lock, passed on to a claim of the same client: as below, without functions that are not needed.
local passed, heir, token, owner
if #ARGV == 5 then
  passed, heir, token, owner = pass(KEYS[1], ARGV[2], KEYS[2], ARGV[3], ARGV[5])
  if owner == ARGV[1] then return { 'granted', { heir, token }, { 1, passed } } end
end

-- #include answer.lua

-- Changes nothing, and is refused when memory is full: but not behind a write.
local function is_full()
  local probe = redis.pcall('SETRANGE', KEYS[2], 0, '')
  return type(probe) == 'table' and string.find(probe.err, 'OOM', 1, true) and probe
end

sender = ARGV[1]
local answers, slow, count = {}, nil, (#ARGV - 1) / 4
local full = not passed and is_full()
for i = 1, count do
  local key = KEYS[2 * i - 1]
  if count > 1 then
    passed, heir, token, owner = pass(key, ARGV[4 * i - 2], KEYS[2 * i], ARGV[4 * i - 1], ARGV[4 * i + 1])
  end
  answers[2 * i - 1], answers[2 * i] = 1, passed
  if passed then
    tell(owner, heir, token, { key = key })
  else
    slow = slow or {}
    slow[#slow + 1] = i
  end
end
if not slow then return speak(answers) end

-- #include queue.lua
-- #include leave.lua
-- #include enqueue.lua

for _, i in ipairs(slow) do
  local key, id = KEYS[2 * i - 1], ARGV[4 * i - 2]
  local single = redis.pcall('GETRANGE', key, '20', '51') == id
  if single then
    redis.call('DEL', key)
    answers[2 * i - 1] = 1
  else
    answers[2 * i - 1] = attempt(release, key, id)
  end
  answers[2 * i] = full
    or attempt(acquire, key, KEYS[2 * i], ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1], '', single)
end
return speak(refused or answers)
