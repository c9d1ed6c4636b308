-- Writes or deletes a register.
-- Columns: namespace, name, value (NULL: delete), expect (0 anything, 1 absent, 2 version),
-- version, token, write_id, ttl, grace (ns for which a deletion is remembered), now, epoch.
-- Result in lockkit_answer: outcome 1 stored (token: the version), 2 stale (token: the highest),
-- 0 conflict.
-- Fails with `lockkit: epoch`, `lockkit: ceiling`; then nothing was done.
--
-- Versions are numbers of the counter that gives the tokens: they grow although the row of a
-- register without a token is removed after a while.
CREATE TEMP VIEW lockkit_store AS
SELECT NULL AS namespace, NULL AS name, NULL AS value, NULL AS expect, NULL AS version,
       NULL AS token, NULL AS write_id, NULL AS ttl, NULL AS grace, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_store INSTEAD OF INSERT ON lockkit_store BEGIN
  SELECT CASE WHEN epoch <> NEW.epoch THEN RAISE(ABORT, 'lockkit: epoch')
              WHEN token >= ceiling THEN RAISE(ABORT, 'lockkit: ceiling') END
  FROM lockkit_meta;
  UPDATE lockkit_registers SET value = NULL, ttl = NULL, expires = NULL
  WHERE namespace = NEW.namespace AND name = NEW.name AND expires <= NEW.now;

  -- outcome 9: to be written
  UPDATE lockkit_answer SET outcome = NULL, token = NULL;
  UPDATE lockkit_answer SET (outcome, token) = (
    SELECT CASE WHEN write_id = NEW.write_id THEN 1
                WHEN NEW.token < highest THEN 2
                WHEN NEW.expect = 1 AND value IS NOT NULL THEN 0
                WHEN NEW.expect = 2 AND (value IS NULL OR version <> NEW.version) THEN 0
                ELSE 9 END,
           CASE WHEN write_id = NEW.write_id THEN version
                WHEN NEW.token < highest THEN highest END
    FROM lockkit_registers WHERE namespace = NEW.namespace AND name = NEW.name);
  UPDATE lockkit_answer SET outcome = CASE WHEN NEW.expect = 2 THEN 0 ELSE 9 END
  WHERE outcome IS NULL;

  UPDATE lockkit_meta SET token = token + 1 WHERE (SELECT outcome FROM lockkit_answer) = 9;
  INSERT INTO lockkit_registers
    (namespace, name, value, version, highest, write_id, ttl, expires, purge_at)
  SELECT NEW.namespace, NEW.name, NEW.value, m.token, NEW.token, NEW.write_id, NEW.ttl,
         NEW.now + NEW.ttl,
         CASE WHEN NEW.value IS NOT NULL THEN NEW.now + NEW.ttl
              WHEN NEW.token IS NULL THEN NEW.now + NEW.grace END
  FROM lockkit_meta AS m WHERE (SELECT outcome FROM lockkit_answer) = 9
  ON CONFLICT (namespace, name) DO UPDATE
  SET value = excluded.value, version = excluded.version, write_id = excluded.write_id,
      ttl = excluded.ttl, expires = excluded.expires,
      purge_at = CASE WHEN excluded.value IS NULL AND lockkit_registers.highest IS NOT NULL
                      THEN NULL ELSE excluded.purge_at END,
      highest = CASE WHEN excluded.highest IS NULL THEN lockkit_registers.highest
                     ELSE excluded.highest END;
  UPDATE lockkit_answer SET outcome = 1, token = (SELECT token FROM lockkit_meta)
  WHERE outcome = 9;
END;
