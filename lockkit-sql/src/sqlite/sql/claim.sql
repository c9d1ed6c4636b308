-- One claim of a list, a waiter or a holder.
-- Parameters: ?1 id, ?2 namespace, ?3 space, ?4 name. Result: token, held, hold_ttl; no row: it is
-- not there.
SELECT token, held, hold_ttl FROM lockkit_claims
WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND place = coalesce(
  (SELECT place FROM lockkit_claims WHERE id = ?1 AND held IS NULL),
  (SELECT place FROM lockkit_claims
   WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND expires > 0
     AND place < coalesce(
       (SELECT place FROM lockkit_claims
        WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND +held IS NULL
        ORDER BY place LIMIT 1), 9223372036854775807)
     AND id = ?1 LIMIT 1));
