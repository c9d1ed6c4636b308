-- The holders of a list and its first waiter: who holds, and when the first of them ends.
-- Parameters: ?1 namespace, ?2 space, ?3 name. Result: id, held, expires.
SELECT id, held, expires FROM lockkit_claims
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND expires > 0
  AND place <= coalesce(
    (SELECT place FROM lockkit_claims
     WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND +held IS NULL
     ORDER BY place LIMIT 1), 9223372036854775807)
ORDER BY place;
