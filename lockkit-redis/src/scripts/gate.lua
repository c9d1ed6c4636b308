-- The locks of neighbours: which claim has one. No script of its own: others include it.
--
-- ARGV[1] is their kind: 'set-nx', where the key is a string, the owner's value; or 'redisson', where it is a
-- hash with the owner as its only field.

local TYPES = { ['set-nx'] = 'string', redisson = 'hash' }

-- Whether this owner has it: nil where no one does. A key of another type is another's; its type follows.
local function is_owner(key, owner)
  local found = redis.call('TYPE', key).ok
  if found == 'none' then return nil end
  if found ~= TYPES[ARGV[1]] then return false, found end
  if found == 'hash' then return redis.call('HEXISTS', key, owner) == 1 end
  return redis.call('GET', key) == owner
end
