-- The release procedure of version 3, which was that of versions 1 and 2 in effect.
CREATE PROCEDURE lockkit_release(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_place BIGINT DEFAULT NULL;
  DECLARE v_crowd TINYINT DEFAULT NULL;
  DECLARE v_outcome TINYINT DEFAULT 3;
  DECLARE v_id BINARY(16) DEFAULT NULL;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT crowd, id, expires INTO v_crowd, v_id, v_expires FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_crowd = 0 THEN
    IF v_id = p_id THEN
      -- The id stays: see swift_release.sql.
      UPDATE lockkit_names SET expires = 0
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET v_outcome = IF(v_expires > v_now, 1, 3);
    ELSEIF v_id IS NOT NULL AND v_expires > v_now THEN
      SET v_outcome = 2;
    END IF;
  ELSEIF v_crowd THEN
    SELECT place, expires INTO v_place, v_expires FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_place IS NOT NULL THEN
      CALL lockkit_leave(p_namespace, p_space, p_name, v_place);
    END IF;
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
    SET v_crowd = (SELECT crowd FROM lockkit_names
      WHERE namespace = p_namespace AND space = p_space AND name = p_name);
    SET v_outcome = CASE WHEN v_place IS NOT NULL AND v_expires > v_now THEN 1
                         WHEN v_crowd AND EXISTS (
                           SELECT 1 FROM lockkit_claims
                           WHERE namespace = p_namespace AND space = p_space AND name = p_name)
                         THEN 2 ELSE 3 END;
  END IF;
  COMMIT;
  SELECT v_outcome AS outcome, v_woken AS woken, COALESCE(v_crowd, 0) AS crowd;
END
