-- Gives a semaphore a limit that stays, and lets those begin to hold who now do.
-- Columns: namespace, name, always (0: only if it has none), capacity, now, epoch.
-- Result in lockkit_answer: token: the limit that it has now. The new holders in lockkit_promoted.
--
-- Who holds goes on holding, whatever the limit: nobody but waiters is looked at by lockkit_settle.
CREATE TEMP VIEW lockkit_resize AS
SELECT NULL AS namespace, NULL AS name, NULL AS always, NULL AS capacity, NULL AS now,
       NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_resize INSTEAD OF INSERT ON lockkit_resize BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  -- Without a limit of its own it keeps the one that it is in use with.
  UPDATE lockkit_answer SET token = CASE WHEN NEW.always THEN NEW.capacity ELSE coalesce(
    (SELECT capacity FROM lockkit_limits WHERE namespace = NEW.namespace AND name = NEW.name),
    (SELECT capacity FROM lockkit_claims
     WHERE namespace = NEW.namespace AND space = 1 AND name = NEW.name AND expires > NEW.now
     ORDER BY place LIMIT 1),
    NEW.capacity) END;
  INSERT INTO lockkit_limits (namespace, name, capacity)
  SELECT NEW.namespace, NEW.name, token FROM lockkit_answer WHERE true
  ON CONFLICT (namespace, name) DO UPDATE SET capacity = excluded.capacity
  WHERE capacity <> excluded.capacity;
  UPDATE lockkit_claims SET capacity = NEW.capacity
  WHERE NEW.always AND namespace = NEW.namespace AND space = 1 AND name = NEW.name
    AND capacity <> NEW.capacity;
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT NEW.namespace, 1, NEW.name, NEW.now
  WHERE NEW.always
    AND EXISTS (SELECT 1 FROM lockkit_claims
                WHERE namespace = NEW.namespace AND space = 1 AND name = NEW.name AND expires > 0);
END;
