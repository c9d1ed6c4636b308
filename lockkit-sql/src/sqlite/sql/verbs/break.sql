-- Breaks the claim of a list that has this token.
-- Columns: namespace, space, name, token, force (1: take it out at once), record (JSON), keep (ns
-- that the record stays at least), now, epoch.
-- Result in lockkit_answer: outcome 1 there was one, NULL there was none. The new holders in
-- lockkit_promoted.
CREATE TEMP VIEW lockkit_break AS
SELECT NULL AS namespace, NULL AS space, NULL AS name, NULL AS token, NULL AS force,
       NULL AS record, NULL AS keep, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_break INSTEAD OF INSERT ON lockkit_break BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  INSERT INTO lockkit_settle (namespace, space, name, now)
  VALUES (NEW.namespace, NEW.space, NEW.name, NEW.now);

  UPDATE lockkit_answer SET outcome = NULL, token = NULL;
  UPDATE lockkit_answer SET (outcome, token) = (
    SELECT 1, place FROM lockkit_claims
    WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
      AND token = NEW.token AND expires > NEW.now);
  INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
  SELECT c.namespace, c.space, c.name, c.id, NEW.record,
         max(NEW.now + max(NEW.keep, c.hold_ttl, c.wait_ttl), c.expires + NEW.keep)
  FROM lockkit_claims AS c, lockkit_answer AS a
  WHERE c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
    AND c.place = a.token;
  UPDATE lockkit_meta SET token = a.token FROM lockkit_answer AS a
  WHERE NEW.force AND a.token > lockkit_meta.token;
  DELETE FROM lockkit_claims
  WHERE NEW.force
    AND namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT token FROM lockkit_answer);
  UPDATE lockkit_claims SET broken = 1
  WHERE NOT NEW.force
    AND namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place = (SELECT token FROM lockkit_answer);
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT NEW.namespace, NEW.space, NEW.name, NEW.now WHERE NEW.force;
END;
