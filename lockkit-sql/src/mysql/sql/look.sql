-- How claims stand. Changes nothing and takes no lock.
-- Parameters: ?1 the JSON of lockkit_renew, as bytes, which MySQL takes for text only when told.
-- Rows: as of lockkit_renew; look 0: somebody ahead has ended.
SELECT j.n - 1 AS n,
       CASE WHEN (c.token IS NULL AND l.last IS NULL) OR c.broken THEN 3
            WHEN c.token IS NOT NULL AND c.held IS NULL THEN 2 ELSE 1 END AS state,
       COALESCE(c.token, l.last) AS token, COALESCE(c.hold_ttl, l.hold_ttl) AS ttl,
       IF(c.token IS NULL OR c.held IS NOT NULL, 0,
          (SELECT COUNT(*) FROM lockkit_claims AS a
           WHERE a.namespace = c.namespace AND a.space = c.space AND a.name = c.name
             AND a.place < c.place)) AS ahead,
       (SELECT GREATEST(0, m.ends - {now}) FROM lockkit_names AS m
        WHERE c.token IS NOT NULL AND c.held IS NULL AND m.namespace = c.namespace
          AND m.space = c.space AND m.name = c.name) AS look,
       IF((c.token IS NULL AND l.last IS NULL) OR c.broken,
          (SELECT b.record FROM lockkit_breaks AS b WHERE b.id = UNHEX(j.id)
           ORDER BY b.n DESC LIMIT 1), NULL) AS record,
       NULL AS woken
FROM JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (
       n FOR ORDINALITY, id CHAR(32) PATH '$[0]', namespace VARCHAR(256) PATH '$[3]',
       space TINYINT PATH '$[4]', name VARCHAR(1024) PATH '$[5]')) AS j
LEFT JOIN lockkit_claims AS c
  ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
 AND c.name = UNHEX(j.name) AND c.expires > {now}
LEFT JOIN lockkit_names AS l
  ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
 AND l.id = UNHEX(j.id) AND l.expires > {now}
LIMIT 18446744073709551615;
