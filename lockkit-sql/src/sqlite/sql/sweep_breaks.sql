-- Removes records of breaks that nobody needs: the last of a list in use stays.
-- Parameters: ?1 now, ?2 how many.
DELETE FROM lockkit_breaks WHERE n IN (
  SELECT n FROM lockkit_breaks AS b
  WHERE expires <= ?1
    AND (NOT EXISTS (SELECT 1 FROM lockkit_claims AS c
                     WHERE c.namespace = b.namespace AND c.space = b.space AND c.name = b.name)
         OR EXISTS (SELECT 1 FROM lockkit_breaks AS l
                    WHERE l.namespace = b.namespace AND l.space = b.space AND l.name = b.name
                      AND l.n > b.n))
  LIMIT ?2);
