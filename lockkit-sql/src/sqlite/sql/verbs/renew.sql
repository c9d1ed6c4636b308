-- Renews many claims at once.
-- Columns: claims: a JSON array of [id in hex, hold_ttl, wait_ttl, namespace, space, name]; now;
-- epoch.
-- Result in lockkit_batch: one row a claim; token NULL: it is not there; held NULL: it waits;
-- broken 1: it was not renewed. The new holders in lockkit_promoted.
--
-- Costs one look at each holder of the lists concerned, and a few steps for each claim.
CREATE TEMP VIEW lockkit_renew AS SELECT NULL AS claims, NULL AS now, NULL AS epoch;

-- The holders of a list, each looked up in the batch.
CREATE TEMP VIEW lockkit_renew_list AS
SELECT NULL AS namespace, NULL AS space, NULL AS name, NULL AS now;

CREATE TEMP TRIGGER lockkit_on_renew_list INSTEAD OF INSERT ON lockkit_renew_list BEGIN
  INSERT INTO lockkit_renew_found
  SELECT b.n, c.place, c.expires <= NEW.now
  FROM lockkit_claims AS c CROSS JOIN lockkit_batch AS b ON b.id = c.id
  WHERE c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
    AND c.expires > 0
    AND c.place < coalesce(
      (SELECT place FROM lockkit_claims
       WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
         AND +held IS NULL ORDER BY place LIMIT 1), 9223372036854775807);
END;

CREATE TEMP VIEW lockkit_renew_found AS SELECT NULL AS n, NULL AS place, NULL AS settle;

CREATE TEMP TRIGGER lockkit_on_renew_found INSTEAD OF INSERT ON lockkit_renew_found BEGIN
  UPDATE lockkit_batch SET place = NEW.place, settle = NEW.settle WHERE n = NEW.n;
END;

-- One claim after the other, each by its key.
CREATE TEMP VIEW lockkit_renew_one AS
SELECT NULL AS n, NULL AS hold_ttl, NULL AS wait_ttl, NULL AS namespace, NULL AS space,
       NULL AS name, NULL AS place, NULL AS now;

CREATE TEMP TRIGGER lockkit_on_renew_one INSTEAD OF INSERT ON lockkit_renew_one BEGIN
  UPDATE lockkit_claims
  SET asked = max(asked, NEW.now),
      expires = max(expires,
        NEW.now + CASE WHEN held IS NULL THEN NEW.wait_ttl ELSE NEW.hold_ttl END),
      hold_ttl = NEW.hold_ttl,
      wait_ttl = NEW.wait_ttl
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name AND place = NEW.place
    AND NOT broken;
  UPDATE lockkit_batch
  SET (token, held, broken) = (
    SELECT token, held, broken FROM lockkit_claims
    WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
      AND place = NEW.place)
  WHERE n = NEW.n;
END;

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
  INSERT INTO lockkit_renew_list
  SELECT DISTINCT namespace, space, name, NEW.now FROM lockkit_batch WHERE place IS NULL;

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

  INSERT INTO lockkit_renew_one
  SELECT n, hold_ttl, wait_ttl, namespace, space, name, place, NEW.now FROM lockkit_batch
  WHERE place IS NOT NULL;
END;
