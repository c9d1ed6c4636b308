-- Lets a list move on, as a verb of its own: a poller saw that its first have ended.
-- Row: promoted.
CREATE PROCEDURE lockkit_look(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  DECLARE v_there TINYINT;
  DECLARE v_promoted TEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
  IF v_there THEN
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_promoted);
  END IF;
  COMMIT;
  SELECT v_promoted AS promoted;
END
--;
