-- Takes a claim out of its queue, inside a transaction of the caller's.
-- Out: outcome 1 it was there (and had not ended), 2 it was not, others are, 3 the queue is empty; uncontended: 0 when
-- others are in the queue, or it has a limit. InOut: woken.
CREATE PROCEDURE lockkit_dequeue(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  OUT p_outcome TINYINT, INOUT p_woken BLOB, OUT p_uncontended TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_place BIGINT DEFAULT NULL;
  DECLARE v_has_claim_rows, v_others TINYINT DEFAULT NULL;
  DECLARE v_id BINARY(16) DEFAULT NULL;

  SET p_outcome = 3;
  SELECT has_claim_rows, id, expires INTO v_has_claim_rows, v_id, v_expires FROM lockkit_names
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
    SELECT place, expires INTO v_place, v_expires FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_place IS NOT NULL THEN
      CALL lockkit_remove_claim(p_namespace, p_space, p_name, v_place);
    END IF;
    CALL lockkit_promote(p_namespace, p_space, p_name, v_now, p_woken);
    SET v_has_claim_rows = NULL;
    SELECT has_claim_rows INTO v_has_claim_rows FROM lockkit_names
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    SELECT 1 INTO v_others FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1;
    SET p_outcome = CASE WHEN v_place IS NOT NULL AND v_expires > v_now THEN 1
                         WHEN v_has_claim_rows AND v_others THEN 2 ELSE 3 END;
  END IF;
  SET p_uncontended = COALESCE(v_has_claim_rows, 0) = 0;
END
--;
