-- Removes what is of no use any more, some rows at a time. :now is the time, :grace for how long (in
-- nanoseconds) the last write of an empty register is remembered.

-- Records of breaks: the last of a queue in use stays.
DELETE FROM lockkit_breaks WHERE n IN (
  SELECT n FROM lockkit_breaks AS b
  WHERE expires <= :now
    AND (NOT EXISTS (SELECT 1 FROM lockkit_claims AS c
                     WHERE c.namespace = b.namespace AND c.space = b.space AND c.name = b.name)
         OR EXISTS (SELECT 1 FROM lockkit_breaks AS l
                    WHERE l.namespace = b.namespace AND l.space = b.space AND l.name = b.name
                      AND l.n > b.n))
  LIMIT 2048);
-- The times of registers that another boot wrote and that were put back by hand: those farthest ahead.
UPDATE lockkit_registers
SET purge_at = :now + ifnull(ttl, :grace), expires = CASE WHEN expires IS NOT NULL THEN :now + ttl END
WHERE rowid IN (SELECT rowid FROM lockkit_registers
                WHERE purge_at IS NOT NULL ORDER BY purge_at DESC LIMIT 64)
  AND purge_at > :now + ifnull(ttl, :grace);
-- The values of registers whose time is over.
UPDATE lockkit_registers
SET value = NULL, ttl = NULL, expires = NULL,
    purge_at = CASE WHEN highest IS NULL THEN :now + :grace END
WHERE rowid IN (SELECT rowid FROM lockkit_registers
                WHERE purge_at <= :now AND expires <= :now LIMIT 2048);
-- Registers that have neither a value nor a token, after a while.
DELETE FROM lockkit_registers
WHERE rowid IN (SELECT rowid FROM lockkit_registers
                WHERE purge_at <= :now AND value IS NULL AND highest IS NULL LIMIT 2048);
