-- Finds counters of tokens that are none; changes nothing.
--
-- KEYS     counters of tokens
--
-- Those with a value that lockkit did not write.
local foreign = {}
for _, key in ipairs(KEYS) do
  local last = redis.pcall('GET', key)
  if last and (type(last) == 'table' or #last ~= 19 or string.find(last, '%D')) then
    foreign[#foreign + 1] = key
  end
end
return foreign
