-- Changes one claim that is in line: `what` is 'shorten' (lease ends `value` ns from now),
-- 'downgrade' (becomes shared in its place) or 'raise' (its token becomes at least `value`, and
-- every later one of its list greater).
-- Columns: what, id, value, now, epoch.
-- Result in lockkit_answer: outcome NULL it is not there, 1 it is, 2 it was broken; token; held;
-- ahead; ttl. The new holders in lockkit_promoted.
CREATE TEMP VIEW lockkit_amend AS
SELECT NULL AS what, NULL AS id, NULL AS value, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_amend INSTEAD OF INSERT ON lockkit_amend BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  DELETE FROM lockkit_front;
  DELETE FROM lockkit_batch;
  INSERT INTO lockkit_batch (n, id, hold_ttl, wait_ttl, namespace, space, name, settle, token)
  SELECT 0, id, hold_ttl, wait_ttl, namespace, space, name, 1, token
  FROM lockkit_claims WHERE id = NEW.id;
  DELETE FROM lockkit_claims WHERE id = NEW.id AND expires <= NEW.now;

  UPDATE lockkit_claims
  SET expires = CASE WHEN broken THEN min(expires, NEW.now + NEW.value)
                     ELSE NEW.now + NEW.value END
  WHERE NEW.what = 'shorten' AND id = NEW.id AND held IS NOT NULL;
  UPDATE lockkit_claims
  SET asked = max(asked, NEW.now),
      expires = max(expires, NEW.now + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END)
  WHERE NEW.what <> 'shorten' AND id = NEW.id AND NOT broken;
  UPDATE lockkit_claims SET weight = 1
  WHERE NEW.what = 'downgrade' AND id = NEW.id AND space = 0;

  -- A raise lifts the waiters behind it as well, or they would get lower tokens later; their
  -- distances stay, so the order does. Shared claims that hold already do not conflict with it.
  UPDATE lockkit_claims
  SET token = max(lockkit_claims.token, NEW.value + (lockkit_claims.place - me.place))
  FROM (SELECT namespace, space, name, place FROM lockkit_claims
        WHERE id = NEW.id AND token < NEW.value) AS me
  WHERE NEW.what = 'raise'
    AND lockkit_claims.namespace = me.namespace AND lockkit_claims.space = me.space
    AND lockkit_claims.name = me.name AND lockkit_claims.place >= me.place
    AND (lockkit_claims.place = me.place OR lockkit_claims.held IS NULL);
  UPDATE lockkit_meta
  SET token = max(token, top), ceiling = max(ceiling, top)
  FROM (SELECT max(c.token) AS top FROM lockkit_claims AS c, lockkit_batch AS b
        WHERE c.namespace = b.namespace AND c.space = b.space AND c.name = b.name)
  WHERE NEW.what = 'raise' AND top > token;

  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT namespace, space, name, NEW.now FROM lockkit_batch;
  INSERT INTO lockkit_news (namespace, space, name)
  SELECT namespace, space, name FROM lockkit_batch WHERE NEW.what = 'shorten';

  UPDATE lockkit_answer
  SET (outcome, token, held, ttl, ahead) = (
    SELECT 1 + c.broken, c.token, c.held, c.hold_ttl,
           CASE WHEN c.held IS NULL THEN
             (SELECT count(*) FROM lockkit_claims AS f
              WHERE f.namespace = c.namespace AND f.space = c.space AND f.name = c.name
                AND f.place < c.place AND f.expires > NEW.now) END
    FROM lockkit_claims AS c WHERE c.id = NEW.id);
END;
