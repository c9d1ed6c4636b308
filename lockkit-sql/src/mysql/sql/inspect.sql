-- The live claims of one queue, in order, and a row without a token in any case.
-- Parameters: ?1 namespace, ?2 space, ?3 name. Columns: those of a claim, see `inspect.rs`.
SELECT namespace, space, name, token, weight, capacity, hold_ttl,
       {now} - queued AS queued_for, expires - GREATEST({now}, set_at) AS left_for, {now} - held AS held_for,
       broken, identity, note, NULL AS record, sequence
FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND expires > {now}
UNION ALL
SELECT namespace, space, name, last, weight, capacity, hold_ttl,
       {now} - since, expires - GREATEST({now}, set_at), {now} - since,
       0, identity, note, NULL, last
FROM lockkit_names
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND id IS NOT NULL AND expires > {now}
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT record FROM lockkit_breaks WHERE namespace = ?1 AND space = ?2 AND name = ?3
        ORDER BY n DESC LIMIT 1), 0
ORDER BY sequence LIMIT 18446744073709551615;
