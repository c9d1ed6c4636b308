-- Ends the values of registers whose time is over.
-- Parameters: ?1 now, ?2 how many, ?3 for how long the last write is remembered.
UPDATE lockkit_registers
SET value = NULL, ttl = NULL, expires = NULL,
    purge_at = CASE WHEN highest IS NULL THEN ?1 + ?3 END
WHERE rowid IN (SELECT rowid FROM lockkit_registers
                WHERE purge_at <= ?1 AND expires <= ?1 LIMIT ?2);
