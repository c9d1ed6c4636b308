-- Lets a list move on, as a verb of its own: a poller saw that its first have ended.
-- Columns: namespace, space, name, now, epoch.
-- Result: the new holders in lockkit_promoted.
CREATE TEMP VIEW lockkit_look AS
SELECT NULL AS namespace, NULL AS space, NULL AS name, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_look INSTEAD OF INSERT ON lockkit_look BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  INSERT INTO lockkit_settle (namespace, space, name, now)
  VALUES (NEW.namespace, NEW.space, NEW.name, NEW.now);
END;
