-- A page of the registers that have a value.
-- Parameters: namespace, name to begin with, greater than any name that is wanted, how many.
-- Columns: name, version, highest token, length of the value.
SELECT name, version, highest, LENGTH(value) FROM lockkit_registers
WHERE namespace = ? AND name >= ? AND name <= ? AND value IS NOT NULL
  AND (expires IS NULL OR expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ORDER BY name LIMIT ?;
