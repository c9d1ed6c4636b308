-- What scripts about queues begin with. No script of its own: others include it.

-- #include clock.lua
-- #include answer.lua
