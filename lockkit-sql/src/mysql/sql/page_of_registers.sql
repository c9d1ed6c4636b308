-- A page of the registers that have a value.
-- Parameters: ?1 namespace, ?2 name to begin with, ?3 greater than any name that is wanted,
-- ?4 how many. Columns: name, version, highest token, length of the value.
SELECT name, version, highest, LENGTH(value) FROM lockkit_registers
WHERE namespace = ?1 AND name >= ?2 AND name <= ?3 AND value IS NOT NULL
  AND (expires IS NULL OR expires > {now})
ORDER BY name LIMIT ?4;
