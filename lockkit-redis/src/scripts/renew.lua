-- Renews many claims; each look at a list also takes out who has ended and lets the next begin.
--
-- KEYS[i]  the lock of the i-th claim
-- ARGV[3i-2], [3i-1], [3i]  its id, its hold ttl and its wait ttl in ms
--
-- For each claim what `renew` in line.lua says.

-- #include line.lua

local answers, lists = {}, {}
for i = 1, #ARGV / 3 do
  local key = KEYS[i]
  local id, hold, wait = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local list = lists[key]
  if not list and redis.pcall('GETRANGE', key, '0', '31') == id then
    if tonumber(hold) > redis.call('PTTL', key) then redis.call('PEXPIRE', key, hold) end
    answers[i] = redis.call('GETRANGE', key, '33', '51')
  elseif not list and redis.call('TYPE', key).ok ~= 'hash' then
    local record = redis.call('HGET', names(key).broken, id)
    answers[i] = record and { record } or 0
  else
    if not list then
      insist(key)
      list = open(key)
      lists[key] = list
    end
    answers[i] = renew(list, id, hold, wait)
  end
end
for _, list in pairs(lists) do close(list) end
return answers
