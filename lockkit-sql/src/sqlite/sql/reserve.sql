-- Puts the ceiling of the tokens higher. Run with synchronous=FULL: it is on disk before any token
-- below it is given.
-- Parameters: ?1 how many tokens, ?2 epoch.
UPDATE lockkit_meta SET ceiling = max(ceiling, token) + ?1 WHERE epoch = ?2;
