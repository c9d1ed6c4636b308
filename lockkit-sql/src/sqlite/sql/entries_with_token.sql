-- The claims of one list that have a token.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 the token. Result: as of entries.sql.
SELECT space, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked, expires, held,
       broken
FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND token = ?4 AND expires > 0;
