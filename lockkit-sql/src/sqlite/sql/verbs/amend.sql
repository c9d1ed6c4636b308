-- Changes one claim that is in line: `what` is 'shorten' (its lease ends `value` ns from now),
-- 'downgrade' (it becomes shared in its place) or 'raise' (its token becomes at least `value`, and
-- every later one of its list greater).
-- Columns: what, id, namespace, space, name, value, now, epoch.
-- Result in lockkit_answer: outcome NULL it is not there, 1 it is, 2 it was broken; token; held;
-- ahead; ttl. The new holders in lockkit_promoted.
CREATE TEMP VIEW lockkit_amend AS
SELECT NULL AS what, NULL AS id, NULL AS namespace, NULL AS space, NULL AS name, NULL AS value,
       NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_amend INSTEAD OF INSERT ON lockkit_amend BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  INSERT INTO lockkit_find VALUES (NEW.id, NEW.namespace, NEW.space, NEW.name);
  UPDATE lockkit_meta SET token = max(token, top)
  FROM (SELECT place AS top FROM lockkit_claims
        WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
          AND place = (SELECT place FROM lockkit_answer) AND expires <= NEW.now)
  WHERE top > token;
  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND expires <= NEW.now;

  UPDATE lockkit_claims
  SET expires = CASE WHEN broken THEN min(expires, NEW.now + NEW.value)
                     ELSE NEW.now + NEW.value END
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND NEW.what = 'shorten' AND held IS NOT NULL;
  UPDATE lockkit_claims
  SET asked = max(asked, NEW.now),
      expires = max(expires, NEW.now + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END)
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND NEW.what <> 'shorten' AND NOT broken;
  UPDATE lockkit_claims SET weight = 1
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND NEW.what = 'downgrade' AND space = 0;

  -- A raise lifts the waiters behind it as well, or they would get lower tokens later; their
  -- distances stay, so the order does. Shared claims that hold already do not conflict with it.
  UPDATE lockkit_claims
  SET token = max(lockkit_claims.token, NEW.value + (lockkit_claims.place - me.place))
  FROM (SELECT c.place FROM lockkit_claims AS c, lockkit_answer AS a
        WHERE c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
          AND c.place = a.place AND c.token < NEW.value AND NEW.what = 'raise') AS me
  WHERE lockkit_claims.namespace = NEW.namespace AND lockkit_claims.space = NEW.space
    AND lockkit_claims.name = NEW.name AND lockkit_claims.place >= me.place
    AND (lockkit_claims.place = me.place OR lockkit_claims.held IS NULL);
  UPDATE lockkit_meta
  SET token = max(token, top), ceiling = max(ceiling, top)
  FROM (SELECT max(token) AS top FROM lockkit_claims
        WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name) AS t
  WHERE NEW.what = 'raise' AND t.top > lockkit_meta.token;

  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT NEW.namespace, NEW.space, NEW.name, NEW.now FROM lockkit_answer WHERE place IS NOT NULL;
  INSERT INTO lockkit_news (namespace, space, name)
  SELECT NEW.namespace, NEW.space, NEW.name FROM lockkit_answer
  WHERE place IS NOT NULL AND NEW.what = 'shorten';

  UPDATE lockkit_answer
  SET (outcome, token, held, ttl, ahead) = (
    SELECT 1 + c.broken, c.token, c.held, c.hold_ttl,
           CASE WHEN c.held IS NULL THEN
             (SELECT count(*) FROM lockkit_claims
              WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                AND place < c.place AND expires > NEW.now) END
    FROM lockkit_claims AS c
    WHERE c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
      AND c.place = lockkit_answer.place);
END;
