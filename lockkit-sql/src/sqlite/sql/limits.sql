-- The limits that semaphores were given, for good. Run whenever a file is opened: files of the first
-- lockkits have neither.
-- Parameters: none.
--
-- The trigger is the file's own, not a connection's, so that a program with an older lockkit, which
-- does not look at limits, is refused as well where it would come in under another one.
CREATE TABLE IF NOT EXISTS lockkit_limits (
  namespace TEXT NOT NULL, name TEXT NOT NULL, capacity INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS lockkit_limited BEFORE INSERT ON lockkit_claims
WHEN NEW.space = 1
 AND EXISTS (SELECT 1 FROM lockkit_limits
             WHERE namespace = NEW.namespace AND name = NEW.name AND capacity <> NEW.capacity)
BEGIN
  SELECT RAISE(ABORT, 'lockkit: this semaphore was given another limit');
END;
