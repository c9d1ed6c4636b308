-- Takes a claim out of its list, and wakes those who now hold.
--
-- KEYS[1]  the lock        ARGV[1]  the claim's id
--
-- 1  it was in line    2  it was not, others are    3  nobody is in line
if redis.pcall('GETRANGE', KEYS[1], '0', '31') == ARGV[1] then return redis.call('DEL', KEYS[1]) end

local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' then return kind == 'string' and 2 or 3 end

-- #include line.lua

insist(KEYS[1])
local list = open(KEYS[1])
local removed = remove(list, ARGV[1])
if removed then promote(list) end
local left = redis.call('ZCARD', list.line)
close(list)
return removed and 1 or (left > 0 and 2 or 3)
