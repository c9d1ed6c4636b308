-- Begins the time of another boot: the machine was started again, or the file came from elsewhere.
-- :now is that boot's clock and :grace ten minutes; the meta row names the boot already.
--
-- Nothing is known of how long the machine was off, so every claim lives one full ttl from now on.
DELETE FROM lockkit_claims WHERE expires = 0;
UPDATE lockkit_claims
SET expires = :now + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END,
    asked = :now, queued = :now, held = CASE WHEN held IS NOT NULL THEN :now END;
UPDATE lockkit_breaks SET expires = :now + :grace;
UPDATE lockkit_registers SET expires = :now + ttl WHERE expires IS NOT NULL;
UPDATE lockkit_registers SET purge_at = CASE WHEN value IS NULL THEN :now + :grace ELSE expires END
WHERE purge_at IS NOT NULL;
