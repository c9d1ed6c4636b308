-- A page of the registers that have a value.
-- Parameters: ?1 namespace, ?2 name to begin with, ?3 greater than any name that is wanted, ?4 how
-- many, ?5 now.
SELECT name, version, highest, length(value) FROM lockkit_registers
WHERE namespace = ?1 AND name >= ?2 AND name <= ?3 AND value IS NOT NULL
  AND (expires IS NULL OR expires > ?5)
ORDER BY name LIMIT ?4;
