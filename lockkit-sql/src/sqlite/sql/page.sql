-- A page of the lists in use, claim by claim.
-- Parameters: ?1 namespace, ?2 space or NULL, ?3 prefix, ?4 greater than any name that has the
-- prefix, ?5 ?6 space and name after which to begin, ?7 how many lists, ?8 now.
SELECT c.namespace, c.space, c.name, c.token, c.weight, c.capacity, c.hold_ttl,
       c.queued, c.expires, c.held, c.broken, c.identity, c.note,
       (SELECT record FROM lockkit_breaks AS b
        WHERE b.namespace = c.namespace AND b.space = c.space AND b.name = c.name
        ORDER BY b.n DESC LIMIT 1) AS record
FROM (SELECT DISTINCT space, name FROM lockkit_claims
      WHERE namespace = ?1 AND space IN (0, 1) AND (?2 IS NULL OR space = ?2)
        AND name >= ?3 AND name <= ?4 AND (space, name) > (?5, ?6) AND expires > ?8
      ORDER BY space, name LIMIT ?7) AS page
CROSS JOIN lockkit_claims AS c
  ON c.namespace = ?1 AND c.space = page.space AND c.name = page.name
WHERE c.expires > ?8
ORDER BY c.space, c.name, c.place;
