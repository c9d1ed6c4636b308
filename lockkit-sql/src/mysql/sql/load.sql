-- Parameters: ?1 namespace, ?2 name. No row, or one: value, version, highest token; for `redate.sql`, when
-- that was written, if it was in the future.
SELECT value, version, highest, IF(set_at > {now}, set_at, NULL) FROM lockkit_registers
WHERE namespace = ?1 AND name = ?2 AND value IS NOT NULL
  AND (expires IS NULL OR expires > {now});
