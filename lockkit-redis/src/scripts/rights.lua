-- Says which commands of the scripts this user may not call.
--
-- The names, as far as the server can tell: none before Redis 7.

-- #include answer.lua

return forbidden()
