-- Lengthens the leases of neighbours' locks. One that is not this owner's is left as it is, and none is made.
--
-- KEYS[i]  the i-th lock   ARGV[1]  their kind, ARGV[2i], [2i+1]  its owner and its lease in ms
--
-- For each lock 1, or 0 where it is not this owner's, or an error of this lock only.

-- #include gate.lua
-- #include answer.lua

local function keep(i)
  local key, owner, lease = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
  if not is_owner(key, owner) then return 0 end
  local remaining = redis.call('PTTL', key)
  if remaining < tonumber(lease) then redis.call('PEXPIRE', key, lease) end
  return 1
end

local answers = {}
for i = 1, #KEYS do answers[i] = attempt(keep, i) end
return refused or answers
