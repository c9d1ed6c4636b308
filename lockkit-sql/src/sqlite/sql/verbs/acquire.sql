-- Puts a claim at the end of its list.
-- Columns: id, namespace, space, name, weight, capacity, hold_ttl, wait_ttl, identity, note; try
-- (1: leave at once if it cannot hold); now; epoch.
-- Result in lockkit_answer: outcome 1 in line, 0 busy; token; held (NULL: waits); ahead.
-- Fails with `lockkit: epoch`, `lockkit: ceiling`, `lockkit: limit`; then nothing was done. (Which
-- limit, limit.sql tells: RAISE takes an expression only from SQLite 3.47 on.)
-- On the way there: `ahead`: it was in line before; `ttl`: the limit in force, NULL: there is none.
CREATE TEMP VIEW lockkit_acquire AS
SELECT NULL AS id, NULL AS namespace, NULL AS space, NULL AS name, NULL AS weight,
       NULL AS capacity, NULL AS hold_ttl, NULL AS wait_ttl, NULL AS identity, NULL AS note,
       NULL AS try, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_acquire INSTEAD OF INSERT ON lockkit_acquire BEGIN
  INSERT INTO lockkit_find VALUES (NEW.id, NEW.namespace, NEW.space, NEW.name);
  UPDATE lockkit_answer
  SET (token, outcome) = (
    SELECT 1 + max(m.token, coalesce(
             (SELECT place FROM lockkit_claims
              WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
              ORDER BY place DESC LIMIT 1), 0)),
           CASE WHEN m.epoch <> NEW.epoch THEN RAISE(ABORT, 'lockkit: epoch') END
    FROM lockkit_meta AS m);
  SELECT RAISE(ABORT, 'lockkit: ceiling') FROM lockkit_answer AS a, lockkit_meta AS m
  WHERE a.token > m.ceiling;
  DELETE FROM lockkit_promoted;
  UPDATE lockkit_answer SET ahead = EXISTS (
    SELECT 1 FROM lockkit_claims
    WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
      AND place = lockkit_answer.place AND expires > NEW.now);

  -- What has ended never revives: it goes, and this claim begins anew at the end. The floor
  -- remembers its place, in case it was the last and a try leaves nothing in it.
  UPDATE lockkit_meta SET token = gone.place
  FROM (SELECT place FROM lockkit_claims
        WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
          AND place = (SELECT place FROM lockkit_answer)
          AND (expires <= NEW.now OR (held IS NULL AND NEW.try))) AS gone
  WHERE gone.place > lockkit_meta.token;
  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND (expires <= NEW.now OR (held IS NULL AND NEW.try));
  -- The row that only remembers the last place: from here on the new claim does.
  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name AND expires = 0
    AND place = (SELECT token - 1 FROM lockkit_answer);
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT NEW.namespace, NEW.space, NEW.name, NEW.now
  WHERE EXISTS (SELECT 1 FROM lockkit_claims
                WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name);

  -- A claim that was in line is known by its id, whatever limit it was made with.
  UPDATE lockkit_answer SET ttl = coalesce(
    (SELECT capacity FROM lockkit_limits
     WHERE NEW.space = 1 AND namespace = NEW.namespace AND name = NEW.name),
    (SELECT capacity FROM lockkit_claims
     WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
     ORDER BY place LIMIT 1));
  SELECT RAISE(ABORT, 'lockkit: limit') FROM lockkit_answer
  WHERE NOT ahead AND ttl <> NEW.capacity;

  -- What is in line already stays where it is.
  UPDATE lockkit_claims
  SET asked = max(asked, NEW.now),
      expires = max(expires, NEW.now + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END)
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND NOT broken;

  -- `held`: whether a new claim can hold. Nobody waits (holders come first, so the last row
  -- tells), and the sum leaves room. `place` becomes NULL where there is none to keep.
  UPDATE lockkit_answer
  SET held = coalesce(ttl, NEW.capacity) = NEW.capacity AND NEW.weight <= NEW.capacity
        AND coalesce(
        (SELECT held IS NOT NULL FROM lockkit_claims
         WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
         ORDER BY place DESC LIMIT 1)
        AND (SELECT sum(weight) FROM lockkit_claims
             WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
            ) + NEW.weight <= NEW.capacity, 1),
      place = (SELECT place FROM lockkit_claims
               WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                 AND place = lockkit_answer.place);
  INSERT INTO lockkit_claims
    (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl,
     queued, asked, expires, held, identity, note)
  SELECT NEW.namespace, NEW.space, NEW.name, a.token, a.token, NEW.id, NEW.weight, NEW.capacity,
         NEW.hold_ttl, NEW.wait_ttl, NEW.now, NEW.now,
         NEW.now + CASE WHEN a.held THEN NEW.hold_ttl ELSE NEW.wait_ttl END,
         CASE WHEN a.held THEN NEW.now END, NEW.identity, NEW.note
  FROM lockkit_answer AS a WHERE a.place IS NULL AND (NOT NEW.try OR a.held);
  -- A try of more permits than the limit leaves the list empty: the floor remembers.
  UPDATE lockkit_meta SET token = a.token - 1
  FROM lockkit_answer AS a
  WHERE NEW.weight > NEW.capacity AND a.token - 1 > lockkit_meta.token
    AND NOT EXISTS (SELECT 1 FROM lockkit_claims
                    WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name);

  UPDATE lockkit_answer
  SET (outcome, token, held, ttl, ahead) = (
    SELECT 1, c.token, c.held, c.hold_ttl,
           CASE WHEN c.held IS NULL THEN
             (SELECT count(*) FROM lockkit_claims
              WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                AND place < c.place AND expires > NEW.now) END
    FROM lockkit_claims AS c
    WHERE c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
      AND c.place = coalesce(lockkit_answer.place, lockkit_answer.token));
END;
