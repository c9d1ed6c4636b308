-- Parameters: ?1 namespace, ?2 name. No row, or one: value, version, highest token.
SELECT value, version, highest FROM lockkit_registers
WHERE namespace = ?1 AND name = ?2 AND value IS NOT NULL
  AND (expires IS NULL OR expires > {now});
