-- Renews many claims; each look at a list also takes out who has ended and lets the next begin.
--
-- KEYS[i]  the lock of the i-th claim
-- ARGV[3i-2], [3i-1], [3i]  its id, its hold ttl and its wait ttl in ms
--
-- For each claim what `renew` in line.lua says, or an error of this claim only; then the server's time in
-- microseconds. In a key that is not lockkit's no claim is in line.
local clock = redis.call('TIME')

-- #include line.lua

local lists = {}
local function renew_one(i)
  local key, id, hold, wait = KEYS[i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local list = lists[key]
  if not list then
    local text = redis.pcall('GET', key)
    local alone = type(text) == 'string' and unpack_alone(text)
    if alone and alone.id == id then return renew_alone(key, alone, hold) end
    list = find(key)
    if not list or list.kind ~= 'hash' then return ended(names(key), id) end
    insist(list)
    open(list)
    lists[key] = list
  end
  return renew(list, id, hold, wait)
end

local answers = {}
for i = 1, #ARGV / 3 do answers[i] = attempt(renew_one, i) end
for key, list in pairs(lists) do
  local failed = attempt(close, list)
  for i = 1, failed and #answers or 0 do
    if KEYS[i] == key then answers[i] = failed end
  end
end
answers[#answers + 1] = now_us
return speak(refused or answers)
