-- A register's value.
-- Parameters: ?1 namespace, ?2 name, ?3 now. Result: value, version, highest; no row: none.
SELECT value, version, highest FROM lockkit_registers
WHERE namespace = ?1 AND name = ?2 AND value IS NOT NULL AND (expires IS NULL OR expires > ?3);
