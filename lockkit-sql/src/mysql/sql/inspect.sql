-- The live claims of one list, in order, and a row without a token in any case.
-- Parameters: ?1 namespace, ?2 space, ?3 name. Columns: as of a line.
SELECT namespace, space, name, token, weight, capacity, hold_ttl,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - queued AS queued_for,
       expires - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS left_for,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - held AS held_for,
       broken, identity, note, NULL AS record, place
FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3
  AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
UNION ALL
SELECT namespace, space, name, last, weight, capacity, hold_ttl,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - since,
       expires - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - since,
       0, identity, note, NULL, last
FROM lockkit_names
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND id IS NOT NULL
  AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT record FROM lockkit_breaks WHERE namespace = ?1 AND space = ?2 AND name = ?3
        ORDER BY n DESC LIMIT 1), 0
ORDER BY place;
