-- Claims of one queue; a condition or an order follows.
-- Parameters: ?1 namespace, ?2 space, ?3 name. Result: the columns of an entry, and whose it is.
SELECT sequence, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked, expires, held, broken,
       identity, note
FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3
