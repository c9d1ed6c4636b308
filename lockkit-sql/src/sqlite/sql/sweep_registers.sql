-- Forgets registers that have neither a value nor a token, after a while.
-- Parameters: ?1 now, ?2 how many.
DELETE FROM lockkit_registers
WHERE rowid IN (SELECT rowid FROM lockkit_registers
                WHERE purge_at <= ?1 AND value IS NULL AND highest IS NULL LIMIT ?2);
