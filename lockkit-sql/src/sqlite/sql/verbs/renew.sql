-- Renews many claims at once.
-- Columns: claims: a JSON array of [id in hex, hold_ttl, wait_ttl]; now; epoch.
-- Result in lockkit_batch: one row a claim; token NULL: it is not there; held NULL: it waits;
-- broken 1: it was not renewed. The new holders in lockkit_promoted.
CREATE TEMP VIEW lockkit_renew AS SELECT NULL AS claims, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_renew INSTEAD OF INSERT ON lockkit_renew BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  DELETE FROM lockkit_batch;
  INSERT INTO lockkit_batch (n, id, hold_ttl, wait_ttl, namespace, space, name, settle)
  SELECT j.key, unhex(j.value ->> 0), j.value ->> 1, j.value ->> 2,
         c.namespace, c.space, c.name, coalesce(c.held IS NULL OR c.expires <= NEW.now, 0)
  FROM json_each(NEW.claims) AS j
  LEFT JOIN lockkit_claims AS c ON c.id = unhex(j.value ->> 0);

  DELETE FROM lockkit_claims
  WHERE id IN (SELECT id FROM lockkit_batch WHERE settle) AND expires <= NEW.now;
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT DISTINCT namespace, space, name, NEW.now FROM lockkit_batch WHERE settle;

  UPDATE lockkit_claims
  SET asked = max(asked, NEW.now),
      expires = max(expires, NEW.now
        + CASE WHEN lockkit_claims.held IS NULL THEN b.wait_ttl ELSE b.hold_ttl END),
      hold_ttl = b.hold_ttl,
      wait_ttl = b.wait_ttl
  FROM lockkit_batch AS b
  WHERE lockkit_claims.id = b.id AND NOT lockkit_claims.broken;
  UPDATE lockkit_batch
  SET token = c.token, held = c.held, broken = c.broken
  FROM lockkit_claims AS c WHERE c.id = lockkit_batch.id;
END;
