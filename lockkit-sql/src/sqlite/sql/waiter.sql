-- A claim that waits in a list.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 id. Result: as of entries.sql.
SELECT space, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked, expires, held,
       broken
FROM lockkit_claims
WHERE id = ?4 AND held IS NULL AND +namespace = ?1 AND +space = ?2 AND +name = ?3;
