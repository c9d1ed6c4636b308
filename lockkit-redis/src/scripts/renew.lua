-- Renews many claims; each queue is also pruned, and the next claims are promoted.
--
-- KEYS[i]  the lock of the i-th claim
-- ARGV[3i-2], [3i-1], [3i]  its id, its hold ttl and its wait ttl in ms
-- ARGV[3n+1]  of n claims: the id of the client, where the answer is to say which others of its claims hold now
--
-- For each claim what `renew` in queue.lua says, or an error of this claim only; then the server's time in
-- microseconds. A key that is not lockkit's has no claims. Within {"granted", …}: see `speak` in answer.lua.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local count = (#ARGV - #ARGV % 3) / 3
sender = ARGV[3 * count + 1]
local queues = {}
local function renew_one(i)
  local key, id, hold, wait = KEYS[i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local queue = queues[key]
  if not queue then
    local text = redis.pcall('GET', key)
    local single = type(text) == 'string' and unpack_single(text)
    if single and single.id == id then return renew_single(key, single, hold) end
    queue = find(key)
    if not queue or queue.kind ~= 'hash' then return claim_end(names(key), id) end
    write_first(queue)
    open(queue)
    queues[key] = queue
  end
  return renew(queue, id, hold, wait)
end

local answers = {}
for i = 1, count do answers[i] = attempt(renew_one, i) end
for key, queue in pairs(queues) do
  local failed = attempt(close, queue)
  for i = 1, failed and #answers or 0 do
    if KEYS[i] == key then answers[i] = failed end
  end
end
answers[#answers + 1] = now_us
return speak(refused or answers)
