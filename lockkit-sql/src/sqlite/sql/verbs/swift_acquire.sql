-- The way of a claim into a list in which nobody is, as everyday locks are.
-- Columns: as the row that is to be; see ../swift_acquire.sql, which fills them.
--
-- A table with a number for its key, since the answer is this number: sqlx tells the last key that
-- was inserted along with the end of the statement, so no row has to be read back. The table stays
-- empty.
CREATE TEMP TABLE lockkit_swift (
  token INTEGER PRIMARY KEY, id, namespace, space, name, weight, capacity, hold_ttl, wait_ttl,
  identity, note, now
);

CREATE TEMP TRIGGER lockkit_on_swift AFTER INSERT ON lockkit_swift BEGIN
  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name;
  INSERT INTO lockkit_claims
    (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl,
     queued, asked, expires, held, identity, note)
  VALUES (NEW.namespace, NEW.space, NEW.name, NEW.token, NEW.token, NEW.id, NEW.weight,
          NEW.capacity, NEW.hold_ttl, NEW.wait_ttl, NEW.now, NEW.now, NEW.now + NEW.hold_ttl,
          NEW.now, NEW.identity, NEW.note);
  DELETE FROM lockkit_swift;
END;
