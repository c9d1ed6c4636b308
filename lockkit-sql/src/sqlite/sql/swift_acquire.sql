-- Puts a claim into a list that is empty, or has only the row that remembers its last place.
-- Parameters: ?1 id, ?2 namespace, ?3 space, ?4 name, ?5 weight, ?6 capacity, ?7 hold_ttl,
-- ?8 wait_ttl, ?9 identity, ?10 note, ?11 ignored, ?12 now, ?13 epoch.
-- Result: one change, whose key is the token; none when it cannot be done so simply.
INSERT INTO lockkit_swift
SELECT 1 + max(m.token, coalesce(
         (SELECT place FROM lockkit_claims WHERE namespace = ?2 AND space = ?3 AND name = ?4), 0)),
       ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?12
FROM lockkit_meta AS m
WHERE m.epoch = ?13 AND ?5 <= ?6
  AND (?3 = 0 OR NOT EXISTS (SELECT 1 FROM lockkit_limits
                             WHERE namespace = ?2 AND name = ?4 AND capacity <> ?6))
  AND NOT EXISTS (SELECT 1 FROM lockkit_claims
                  WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND expires > 0)
  AND m.ceiling > max(m.token, coalesce(
         (SELECT place FROM lockkit_claims WHERE namespace = ?2 AND space = ?3 AND name = ?4), 0));
