-- A page of the queues in use, claim by claim. (The limit says that sql_select_limit is not meant.)
-- Parameters: ?1 namespace, ?2 space or -1, ?3 prefix, ?4 ?5 space and name after which to begin,
-- ?6 how many queues, ?7 greater than any name that has the prefix. Columns: those of a claim, see `inspect.rs`.
WITH page AS (
  SELECT namespace, space, name FROM lockkit_names
  WHERE namespace = ?1 AND name >= ?3 AND name <= ?7 AND (?2 = -1 OR space = ?2)
    AND (space > ?4 OR (space = ?4 AND name > ?5))
    AND (has_claim_rows OR id IS NOT NULL)
    AND (expires > {now}
         OR (has_claim_rows AND EXISTS (
              SELECT 1 FROM lockkit_claims AS c
              WHERE c.namespace = lockkit_names.namespace AND c.space = lockkit_names.space
                AND c.name = lockkit_names.name AND c.expires > {now})))
  ORDER BY space, name LIMIT ?6)
SELECT c.namespace, c.space, c.name, c.token, c.weight, c.capacity, c.hold_ttl,
       {now} - c.queued AS queued_for, c.expires - GREATEST({now}, c.set_at) AS left_for, {now} - c.held AS held_for,
       c.broken, c.identity, c.note,
       (SELECT b.record FROM lockkit_breaks AS b
        WHERE b.namespace = c.namespace AND b.space = c.space AND b.name = c.name
        ORDER BY b.n DESC LIMIT 1) AS record, c.sequence
FROM page STRAIGHT_JOIN lockkit_claims AS c
  ON c.namespace = page.namespace AND c.space = page.space AND c.name = page.name
WHERE c.expires > {now}
UNION ALL
SELECT l.namespace, l.space, l.name, l.last, l.weight, l.capacity, l.hold_ttl,
       {now} - l.since, l.expires - GREATEST({now}, l.set_at), {now} - l.since,
       0, l.identity, l.note,
       (SELECT b.record FROM lockkit_breaks AS b
        WHERE b.namespace = l.namespace AND b.space = l.space AND b.name = l.name
        ORDER BY b.n DESC LIMIT 1), l.last
FROM page STRAIGHT_JOIN lockkit_names AS l
  ON l.namespace = page.namespace AND l.space = page.space AND l.name = page.name
WHERE l.id IS NOT NULL
ORDER BY space, name, sequence LIMIT 18446744073709551615;
