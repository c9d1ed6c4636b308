-- The live claims of one list, in order.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 now.
SELECT namespace, space, name, token, weight, capacity, hold_ttl, queued, expires, held,
       broken, identity, note
FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND expires > ?4
ORDER BY place;
