-- What scripts about queues begin with. No script of its own: others include it.

local CAPACITY = '2147483647'
-- From here on Lua's numbers are not exact.
local LARGEST = '0009007199254740991'

-- `clock`, the answer of TIME, is there already: one script has one time.
local now_us = string.format('%s%06d', clock[1], clock[2])
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function padded(digits)
  return string.rep('0', 19 - #digits) .. digits
end

-- #include answer.lua
