-- A page of the registers that have a value. Arguments and result: `StatementId::Registers`.
SELECT r.name, r.version, r.highest, octet_length(r.value)::bigint
FROM {p}registers AS r
WHERE r.namespace = $1 AND r.name >= $2 AND r.name <= $3 AND r.value IS NOT NULL
  AND (r.expires IS NULL OR r.expires > {p}clock())
ORDER BY r.name LIMIT $4
