-- Takes a claim out of its list, inside a transaction of the caller's.
-- Out: outcome 1 it was there (and had not ended), 2 it was not, others are, 3 nobody is; alone: 0 when
-- others are in the list, or it has a limit. InOut: woken.
CREATE PROCEDURE lockkit_remove(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  OUT p_outcome TINYINT, INOUT p_woken BLOB, OUT p_alone TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_place BIGINT DEFAULT NULL;
  DECLARE v_crowd, v_others TINYINT DEFAULT NULL;
  DECLARE v_id BINARY(16) DEFAULT NULL;

  SET p_outcome = 3;
  SELECT crowd, id, expires INTO v_crowd, v_id, v_expires FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_crowd = 0 THEN
    IF v_id = p_id THEN
      -- The id stays: see fast_release.sql.
      UPDATE lockkit_names SET expires = 0
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET p_outcome = IF(v_expires > v_now, 1, 3);
    ELSEIF v_id IS NOT NULL AND v_expires > v_now THEN
      SET p_outcome = 2;
    END IF;
  ELSEIF v_crowd THEN
    SELECT place, expires INTO v_place, v_expires FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_place IS NOT NULL THEN
      CALL lockkit_leave(p_namespace, p_space, p_name, v_place);
    END IF;
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, p_woken);
    SET v_crowd = NULL;
    SELECT crowd INTO v_crowd FROM lockkit_names
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    SELECT 1 INTO v_others FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1;
    SET p_outcome = CASE WHEN v_place IS NOT NULL AND v_expires > v_now THEN 1
                         WHEN v_crowd AND v_others THEN 2 ELSE 3 END;
  END IF;
  SET p_alone = COALESCE(v_crowd, 0) = 0;
END
--;
