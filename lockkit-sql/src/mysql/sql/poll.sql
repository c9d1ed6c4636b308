-- How claims stand. Changes nothing and takes no lock. Those ahead are counted for all claims of a queue at
-- once, and claims are found by their id: either by the key of the queue costs a thousand claims a million
-- rows.
-- Parameters: ?1 the JSON of lockkit_renew, as bytes, which MySQL takes for text only when told.
-- Rows: as of lockkit_renew; next_poll 0: a claim ahead has ended.
WITH asked AS (
  SELECT n, UNHEX(id) AS id, UNHEX(namespace) AS namespace, space, UNHEX(name) AS name
  FROM JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (
    n FOR ORDINALITY, id CHAR(32) PATH '$[0]', namespace VARCHAR(256) PATH '$[3]',
    space TINYINT PATH '$[4]', name VARCHAR(1024) PATH '$[5]')) AS t
), waits AS (
  SELECT DISTINCT c.namespace, c.space, c.name
  FROM asked AS j STRAIGHT_JOIN lockkit_claims AS c FORCE INDEX (lockkit_by_id) ON c.id = j.id
  WHERE c.held IS NULL
), placed AS (
  SELECT c.id, ROW_NUMBER() OVER (
    PARTITION BY c.namespace, c.space, c.name ORDER BY c.sequence) - 1 AS ahead
  FROM waits STRAIGHT_JOIN lockkit_claims AS c
    ON c.namespace = waits.namespace AND c.space = waits.space AND c.name = waits.name
)
SELECT j.n - 1 AS n,
       CASE WHEN (c.token IS NULL AND l.last IS NULL) OR c.broken THEN 3
            WHEN c.token IS NOT NULL AND c.held IS NULL THEN 2 ELSE 1 END AS state,
       COALESCE(c.token, l.last) AS token, COALESCE(c.hold_ttl, l.hold_ttl) AS ttl,
       IF(c.token IS NULL OR c.held IS NOT NULL, 0, p.ahead) AS ahead,
       (SELECT GREATEST(0, m.ends - {now}) FROM lockkit_names AS m
        WHERE c.token IS NOT NULL AND c.held IS NULL AND m.namespace = c.namespace
          AND m.space = c.space AND m.name = c.name) AS next_poll,
       IF((c.token IS NULL AND l.last IS NULL) OR c.broken,
          (SELECT b.record FROM lockkit_breaks AS b WHERE b.id = j.id
           ORDER BY b.n DESC LIMIT 1), NULL) AS record,
       NULL AS woken
FROM asked AS j
LEFT JOIN lockkit_claims AS c FORCE INDEX (lockkit_by_id)
  ON c.id = j.id AND c.namespace = j.namespace AND c.space = j.space
 AND c.name = j.name AND c.expires > {now}
LEFT JOIN placed AS p ON p.id = j.id
LEFT JOIN lockkit_names AS l
  ON l.namespace = j.namespace AND l.space = j.space AND l.name = j.name
 AND l.id = j.id AND l.expires > {now}
LIMIT 18446744073709551615;
