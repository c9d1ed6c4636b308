-- Takes a claim out of its list.
-- Columns: id, namespace, space, name, now, epoch.
-- Result in lockkit_answer: outcome 1 it was there (and had not ended), 0 it was not, others are,
-- NULL nobody is; the new holders in lockkit_promoted.
CREATE TEMP VIEW lockkit_release AS
SELECT NULL AS id, NULL AS namespace, NULL AS space, NULL AS name, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_release INSTEAD OF INSERT ON lockkit_release BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  INSERT INTO lockkit_find VALUES (NEW.id, NEW.namespace, NEW.space, NEW.name);
  -- `ahead`: others are in the list. (The row that only remembers is always alone.)
  UPDATE lockkit_answer
  SET outcome = (SELECT 1 FROM lockkit_claims
                 WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                   AND place = lockkit_answer.place AND expires > NEW.now),
      ahead = EXISTS (SELECT 1 FROM lockkit_claims
                      WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                        AND place <> coalesce(lockkit_answer.place, 0) AND expires > 0);

  UPDATE lockkit_claims SET expires = 0, held = coalesce(held, NEW.now)
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND NOT (SELECT ahead FROM lockkit_answer);

  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT place FROM lockkit_answer)
    AND (SELECT ahead FROM lockkit_answer);
  UPDATE lockkit_meta SET token = a.place
  FROM lockkit_answer AS a
  WHERE a.ahead AND a.place > lockkit_meta.token
    AND NOT EXISTS (SELECT 1 FROM lockkit_claims
                    WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                      AND place > a.place);
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT NEW.namespace, NEW.space, NEW.name, NEW.now FROM lockkit_answer WHERE ahead;
  UPDATE lockkit_answer
  SET outcome = (SELECT 0 FROM lockkit_claims
                 WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                   AND expires > 0 LIMIT 1)
  WHERE outcome IS NULL;
END;
