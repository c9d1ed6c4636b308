-- Begins the time of another boot: the machine was started anew, or the file came from elsewhere.
-- Run in one transaction, each statement with the same parameters: ?1 the new boot's id, ?2 now on
-- its clock, ?3 ten minutes.
--
-- Nothing is known of how long the machine was off, so every claim lives one full ttl from now on.
-- Tokens go on above the ceiling: what was given below it may be lost from the file, if the power
-- failed, but the ceiling was on disk before.
DELETE FROM lockkit_claims WHERE expires = 0;
UPDATE lockkit_claims
SET expires = ?2 + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END,
    asked = ?2, queued = ?2, held = CASE WHEN held IS NOT NULL THEN ?2 END;
UPDATE lockkit_breaks SET expires = ?2 + ?3;
UPDATE lockkit_registers SET expires = ?2 + ttl WHERE expires IS NOT NULL;
UPDATE lockkit_registers SET purge_at = CASE WHEN value IS NULL THEN ?2 + ?3 ELSE expires END
WHERE purge_at IS NOT NULL;
UPDATE lockkit_meta SET boot = ?1, epoch = epoch + 1, token = ceiling;
