-- Claims of one list behind a place, in order.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 the place, ?5 how many.
SELECT space, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked, expires, held,
       broken
FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place > ?4
ORDER BY place LIMIT ?5;
