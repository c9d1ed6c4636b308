-- The answer of a renewal, from this connection's own memory; how many stand ahead of those who
-- wait is counted now and meant for people.
-- Parameters: ?2 now, as in the statement before it. Result: n, token, held, hold_ttl, broken, ahead, record,
-- promoted: the ids of all new holders, JSON of hex.
SELECT b.n, b.token, b.held, b.hold_ttl, b.broken, coalesce(l.ahead, 0) AS ahead,
       (SELECT record FROM lockkit_breaks
        WHERE (b.token IS NULL OR b.broken) AND id = b.id ORDER BY n DESC LIMIT 1) AS record,
       (SELECT json_group_array(hex(id)) FROM temp.lockkit_promoted) AS promoted
FROM lockkit_batch AS b
LEFT JOIN (
  SELECT c.id, count(*) OVER (PARTITION BY c.namespace, c.space, c.name ORDER BY c.place) - 1
    AS ahead
  FROM (SELECT DISTINCT namespace, space, name FROM lockkit_batch
        WHERE token IS NOT NULL AND held IS NULL) AS lists
  CROSS JOIN lockkit_claims AS c
    ON c.namespace = lists.namespace AND c.space = lists.space AND c.name = lists.name
  WHERE c.expires > ?2) AS l ON l.id = b.id AND b.held IS NULL
ORDER BY b.n;
