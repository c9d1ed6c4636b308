-- Removes a neighbours' lock, if it is this owner's, and wakes those who wait for it.
--
-- KEYS[1]  the lock        ARGV[1]  its kind, ARGV[2] the owner, ARGV[3] the channel of those who wait, or ''
--
-- 1 when it was removed, 0 when it was not this owner's; or why the message was refused.

-- #include gate.lua
-- #include answer.lua

local function give()
  if not is_owner(KEYS[1], ARGV[2]) then return 0 end
  redis.call('DEL', KEYS[1])
  local sent = ARGV[3] ~= '' and redis.pcall('PUBLISH', ARGV[3], '0')
  if type(sent) == 'table' and sent.err then return sent.err end
  return 1
end

return attempt(give)
