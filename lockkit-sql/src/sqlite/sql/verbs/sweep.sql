-- Removes what nobody needs any more, a bite at a time: lists that nobody visits, old records of
-- breaks, registers that are gone.
-- Columns: namespace, space, name: where the last bite ended; bite: how many rows to look at;
-- grace: ns for which an empty register's last write is remembered; now; epoch.
-- Result: none; the caller asks sweep_next.sql where to go on.
CREATE TEMP VIEW lockkit_sweep AS
SELECT NULL AS namespace, NULL AS space, NULL AS name, NULL AS bite, NULL AS grace, NULL AS now,
       NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_sweep INSTEAD OF INSERT ON lockkit_sweep BEGIN
  SELECT RAISE(ABORT, 'lockkit: epoch') FROM lockkit_meta WHERE epoch <> NEW.epoch;
  DELETE FROM lockkit_promoted;
  -- The lists to clear, kept aside since clearing them moves the rows.
  DELETE FROM lockkit_batch;
  INSERT INTO lockkit_batch (id, hold_ttl, wait_ttl, namespace, space, name, place, settle)
  SELECT x'', 0, 0, namespace, space, name, place, expires > 0 FROM (
    SELECT namespace, space, name, place, expires FROM lockkit_claims
    WHERE (namespace, space, name) > (NEW.namespace, NEW.space, NEW.name)
    ORDER BY namespace, space, name, place LIMIT NEW.bite)
  WHERE expires <= NEW.now;
  UPDATE lockkit_meta SET token = max(token, top)
  FROM (SELECT max(place) AS top FROM lockkit_batch) WHERE top > token;
  DELETE FROM lockkit_claims
  WHERE (namespace, space, name, place) IN (
      SELECT namespace, space, name, place FROM lockkit_batch WHERE NOT settle)
    AND expires = 0;
  INSERT INTO lockkit_settle (namespace, space, name, now)
  SELECT DISTINCT namespace, space, name, NEW.now FROM lockkit_batch WHERE settle;

  DELETE FROM lockkit_breaks WHERE n IN (
    SELECT n FROM lockkit_breaks AS b
    WHERE expires <= NEW.now
      AND (NOT EXISTS (SELECT 1 FROM lockkit_claims AS c
                       WHERE c.namespace = b.namespace AND c.space = b.space AND c.name = b.name)
           OR EXISTS (SELECT 1 FROM lockkit_breaks AS l
                      WHERE l.namespace = b.namespace AND l.space = b.space AND l.name = b.name
                        AND l.n > b.n))
    LIMIT NEW.bite);

  UPDATE lockkit_registers
  SET value = NULL, ttl = NULL, expires = NULL,
      purge_at = CASE WHEN highest IS NULL THEN NEW.now + NEW.grace END
  WHERE rowid IN (SELECT rowid FROM lockkit_registers
                  WHERE purge_at <= NEW.now AND expires <= NEW.now LIMIT NEW.bite);
  DELETE FROM lockkit_registers
  WHERE rowid IN (SELECT rowid FROM lockkit_registers
                  WHERE purge_at <= NEW.now AND value IS NULL AND highest IS NULL
                  LIMIT NEW.bite);
END;
