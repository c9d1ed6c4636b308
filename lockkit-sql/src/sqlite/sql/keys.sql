-- A page of the queues in use.
-- Parameters: ?1 namespace, ?2 space or NULL, ?3 prefix, ?4 greater than any name that has the
-- prefix, ?5 ?6 space and name after which the page begins, ?7 how many queues, ?8 now.
SELECT DISTINCT namespace, space, name FROM lockkit_claims
WHERE namespace = ?1 AND space IN (0, 1) AND (?2 IS NULL OR space = ?2)
  AND name >= ?3 AND name <= ?4 AND (space, name) > (?5, ?6) AND expires > ?8
ORDER BY space, name LIMIT ?7;
