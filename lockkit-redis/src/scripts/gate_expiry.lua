-- How long neighbours' locks last.
--
-- KEYS[i]  the i-th lock
--
-- For each the ms, -1 when it has no end, -2 when it is not there.

local answers = {}
for i, key in ipairs(KEYS) do answers[i] = redis.call('PTTL', key) end
return answers
