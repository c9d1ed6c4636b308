-- Takes a neighbours' lock, if it is free.
--
-- KEYS[1]  the lock        ARGV[1]  its kind, ARGV[2] the owner, ARGV[3] the lease in ms
--
-- {"taken"}, also when it was this owner's before, or {"busy", MS}: how long its lease lasts yet, -1 for ever.

-- #include gate.lua
-- #include answer.lua

local function take()
  local owns, other = is_owner(KEYS[1], ARGV[2])
  if other then
    error({ err = 'LOCKKIT the key ' .. KEYS[1] .. ' is a ' .. other .. ', and with neighbours=' .. ARGV[1]
      .. ' a lock is a ' .. TYPES[ARGV[1]] .. '; nothing was changed. Is it a lock of another library?' })
  end
  local remaining = redis.call('PTTL', KEYS[1])
  if owns == false then return { 'busy', remaining } end
  if owns then
    if remaining >= 0 and remaining < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  elseif ARGV[1] == 'redisson' then
    redis.call('HSET', KEYS[1], ARGV[2], '1')
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
  return { 'taken' }
end

return attempt(take)
