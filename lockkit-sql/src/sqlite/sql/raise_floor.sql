-- Lets the tokens go on above a number, and puts a block of them on disk with it. Run with
-- synchronous=FULL.
-- Parameters: ?1 the number, ?2 how many tokens, ?3 epoch.
UPDATE lockkit_meta SET token = max(token, ?1), ceiling = max(ceiling, ?1 + ?2) WHERE epoch = ?3;
