-- One claim, and how it was broken if it was.
-- Parameters: ?1 id, ?2 namespace, ?3 space, ?4 name. Result: token (NULL: it is not there), held,
-- hold_ttl, record.
SELECT c.token, c.held, c.hold_ttl, b.record
FROM (SELECT coalesce(
        (SELECT place FROM lockkit_claims WHERE id = ?1 AND held IS NULL),
        (SELECT place FROM lockkit_claims
         WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND expires > 0
           AND place < coalesce(
             (SELECT place FROM lockkit_claims
              WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND +held IS NULL
              ORDER BY place LIMIT 1), 9223372036854775807)
           AND id = ?1 LIMIT 1)) AS place) AS ask
LEFT JOIN lockkit_claims AS c
  ON c.namespace = ?2 AND c.space = ?3 AND c.name = ?4 AND c.place = ask.place
LEFT JOIN lockkit_breaks AS b ON b.n = (SELECT max(n) FROM lockkit_breaks WHERE id = ?1);
