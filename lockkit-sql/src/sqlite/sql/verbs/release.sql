-- Takes a claim out of its list.
-- Columns: id, namespace, space, name, now, epoch.
-- Result in lockkit_answer: outcome 1 it was there (and had not ended), 0 it was not, others are,
-- NULL nobody is; the new holders in lockkit_promoted.
CREATE TEMP VIEW lockkit_release AS
SELECT NULL AS id, NULL AS namespace, NULL AS space, NULL AS name, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_release INSTEAD OF INSERT ON lockkit_release BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  UPDATE lockkit_answer
  SET outcome = (SELECT 1 FROM lockkit_claims WHERE id = NEW.id AND expires > NEW.now);
  DELETE FROM lockkit_claims WHERE id = NEW.id;

  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT NEW.namespace, NEW.space, NEW.name, NEW.now
  WHERE EXISTS (SELECT 1 FROM lockkit_claims
                WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name);
  UPDATE lockkit_answer
  SET outcome = (SELECT 0 FROM lockkit_claims
                 WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name LIMIT 1)
  WHERE outcome IS NULL;
END;
