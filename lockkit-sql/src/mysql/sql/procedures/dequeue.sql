-- Takes a claim out of its queue, inside a transaction of the caller's.
-- Out: outcome 1 it was there (and had not ended), 2 it was not, others are, 3 the queue is empty; uncontended: 0 when
-- others are in the queue, or it has a limit. InOut: woken.
CREATE PROCEDURE lockkit_dequeue(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  OUT p_outcome TINYINT, INOUT p_woken BLOB, OUT p_uncontended TINYINT)
SQL SECURITY INVOKER
main: BEGIN
  DECLARE v_now, v_expires, v_sequence, v_next, v_ends, v_fixed_limit, v_since BIGINT DEFAULT NULL;
  DECLARE v_has_claim_rows, v_others, v_passes TINYINT DEFAULT NULL;
  DECLARE v_id BINARY(16) DEFAULT NULL;

  SET p_outcome = 3;
  SELECT has_claim_rows, id, expires, next, fixed_limit, since
  INTO v_has_claim_rows, v_id, v_expires, v_next, v_fixed_limit, v_since FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_has_claim_rows = 0 THEN
    IF v_id = p_id THEN
      -- The id stays: see fast_release.sql.
      UPDATE lockkit_names SET expires = 0
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET p_outcome = IF(v_expires > v_now, 1, 3);
    ELSEIF v_id IS NOT NULL AND v_expires > v_now THEN
      SET p_outcome = 2;
    END IF;
  ELSEIF v_has_claim_rows THEN
    SELECT sequence, expires, held IS NOT NULL AND expires > v_now AND weight = capacity AND fenced = 0
             AND v_next <> 0 AND v_fixed_limit IS NULL AND v_since <= v_now
    INTO v_sequence, v_expires, v_passes FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_passes THEN
      -- As in `lockkit_pass`; a CALL of a procedure for both would cost more than these statements do.
      SELECT MIN(sequence) INTO v_next FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence > v_sequence;
      UPDATE lockkit_claims
      SET held = v_now, set_at = v_now, expires = GREATEST(expires, v_now + hold_ttl),
          hold_ttl = LAST_INSERT_ID(hold_ttl)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_next
        AND held IS NULL AND expires > v_now AND weight = capacity AND broken = 0;
      SET v_passes = ROW_COUNT();
    END IF;
    IF v_passes THEN
      SET v_ends = v_now + LAST_INSERT_ID(), p_outcome = 1, p_uncontended = 0;
      DELETE FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
      SELECT CONCAT(p_woken, UNHEX(LEFT(SHA2(id, 256), 16)), UNHEX(LPAD(HEX(token), 16, '0')))
      INTO p_woken FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_next;
      SET v_sequence = 0;
      SELECT sequence, LEAST(v_ends, expires) INTO v_sequence, v_ends FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence > v_next
      ORDER BY sequence LIMIT 1;
      UPDATE lockkit_names SET next = v_sequence, ends = v_ends, since = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      LEAVE main;
    END IF;
    IF v_sequence IS NOT NULL THEN
      CALL lockkit_remove_claim(p_namespace, p_space, p_name, v_sequence);
    END IF;
    CALL lockkit_promote(p_namespace, p_space, p_name, v_now, p_woken);
    SET v_has_claim_rows = NULL;
    SELECT has_claim_rows INTO v_has_claim_rows FROM lockkit_names
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    SELECT 1 INTO v_others FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1;
    SET p_outcome = CASE WHEN v_sequence IS NOT NULL AND v_expires > v_now THEN 1
                         WHEN v_has_claim_rows AND v_others THEN 2 ELSE 3 END;
  END IF;
  SET p_uncontended = COALESCE(v_has_claim_rows, 0) = 0;
END
--;
