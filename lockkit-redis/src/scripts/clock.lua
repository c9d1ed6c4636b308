-- The time of a script, of `clock`, the answer of TIME: one script has one time. No script of its own: others
-- include it.

local CAPACITY = '2147483647'
-- From here on Lua's numbers are not exact.
local LARGEST = '0009007199254740991'
-- The HELD_US of a claim that waits, and the latest END of a claim.
local WAITING, FAR = '0000000000000000', 9999999999999

-- Put together as text: to format a number takes as long as a command.
local micros = #clock[2] == 6 and clock[2] or string.format('%06d', clock[2])
local now_us = clock[1] .. micros
local now_ms = clock[1] .. string.sub(micros, 1, 3)
local now = tonumber(now_ms)
