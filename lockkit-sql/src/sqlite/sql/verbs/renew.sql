-- Renews many claims at once.
-- Columns: claims: a JSON array of [id in hex, hold_ttl, wait_ttl, namespace, space, name]; now;
-- epoch.
-- Result in lockkit_batch: one row a claim; token NULL: it is not there; held NULL: it waits;
-- broken 1: it was not renewed. The new holders in lockkit_promoted.
--
-- Costs one look at each holder of the lists concerned, and a few steps for each claim.
CREATE TEMP VIEW lockkit_renew AS SELECT NULL AS claims, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_renew INSTEAD OF INSERT ON lockkit_renew BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  DELETE FROM lockkit_batch;
  INSERT INTO lockkit_batch (n, id, hold_ttl, wait_ttl, namespace, space, name, place, settle)
  SELECT j.key, unhex(j.value ->> 0), j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4,
         j.value ->> 5, w.place, w.place IS NOT NULL
  FROM json_each(NEW.claims) AS j
  LEFT JOIN lockkit_claims AS w ON w.id = unhex(j.value ->> 0) AND w.held IS NULL;
  -- The others hold, or are gone.
  UPDATE lockkit_batch SET place = h.place, settle = h.expires <= NEW.now
  FROM (SELECT c.id, c.place, c.expires
        FROM (SELECT DISTINCT namespace, space, name FROM lockkit_batch WHERE place IS NULL) AS l
        CROSS JOIN lockkit_claims AS c
          ON c.namespace = l.namespace AND c.space = l.space AND c.name = l.name
         AND c.held IS NOT NULL AND c.expires > 0
         AND c.place < coalesce(
           (SELECT place FROM lockkit_claims AS f
            WHERE f.namespace = l.namespace AND f.space = l.space AND f.name = l.name
              AND f.held IS NULL ORDER BY f.place LIMIT 1), 9223372036854775807)) AS h
  WHERE lockkit_batch.id = h.id;

  UPDATE lockkit_meta SET token = max(token, top)
  FROM (SELECT max(c.place) AS top
        FROM lockkit_batch AS b CROSS JOIN lockkit_claims AS c
          ON c.namespace = b.namespace AND c.space = b.space AND c.name = b.name
         AND c.place = b.place
        WHERE b.settle AND c.expires <= NEW.now)
  WHERE top > token;
  DELETE FROM lockkit_claims
  WHERE (namespace, space, name, place) IN (
      SELECT namespace, space, name, place FROM lockkit_batch WHERE settle)
    AND expires <= NEW.now;
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT DISTINCT namespace, space, name, NEW.now FROM lockkit_batch WHERE settle;

  UPDATE lockkit_claims
  SET asked = max(asked, NEW.now),
      expires = max(expires, NEW.now
        + CASE WHEN lockkit_claims.held IS NULL THEN b.wait_ttl ELSE b.hold_ttl END),
      hold_ttl = b.hold_ttl,
      wait_ttl = b.wait_ttl
  FROM lockkit_batch AS b
  WHERE lockkit_claims.namespace = b.namespace AND lockkit_claims.space = b.space
    AND lockkit_claims.name = b.name AND lockkit_claims.place = b.place
    AND NOT lockkit_claims.broken;
  UPDATE lockkit_batch
  SET token = c.token, held = c.held, broken = c.broken
  FROM lockkit_claims AS c
  WHERE c.namespace = lockkit_batch.namespace AND c.space = lockkit_batch.space
    AND c.name = lockkit_batch.name AND c.place = lockkit_batch.place;
END;
