-- Begins the time of another boot: the machine was started anew, or the file came from elsewhere.
-- Columns: boot: the new boot's id; now: on its clock; epoch: the one that ends.
-- Result: none. Nothing happens when somebody else did it before.
--
-- Nothing is known of how long the machine was off, so every claim lives one full ttl from now on.
-- Tokens go on above the ceiling: what was given below it may be lost from the file, if the power
-- failed, but the ceiling was on disk before.
CREATE TEMP VIEW lockkit_takeover AS SELECT NULL AS boot, NULL AS now, NULL AS epoch;

CREATE TEMP TRIGGER lockkit_on_takeover INSTEAD OF INSERT ON lockkit_takeover
WHEN (SELECT epoch FROM lockkit_meta) = NEW.epoch
BEGIN
  DELETE FROM lockkit_claims WHERE expires = 0;
  UPDATE lockkit_claims
  SET expires = NEW.now + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END,
      asked = NEW.now, queued = NEW.now, held = CASE WHEN held IS NOT NULL THEN NEW.now END;
  UPDATE lockkit_breaks SET expires = NEW.now + 600000000000;
  UPDATE lockkit_registers SET expires = NEW.now + ttl WHERE expires IS NOT NULL;
  UPDATE lockkit_registers
  SET purge_at = CASE WHEN value IS NULL THEN NEW.now + 600000000000 ELSE expires END
  WHERE purge_at IS NOT NULL;
  UPDATE lockkit_meta SET boot = NEW.boot, epoch = epoch + 1, token = ceiling;
END;
