-- Gives a semaphore a limit that stays, and lets those begin to hold who now do.
-- In: always: 0: only if it has none.
-- Row: the limit that it has now; woken.
--
-- Who holds goes on holding, whatever the limit: promotion looks at waiters only. From here on the queue
-- is in lockkit_claims for good, so that the fast acquire, which looks at no limit, finds it in use.
CREATE PROCEDURE lockkit_resize(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_always TINYINT, IN p_capacity BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_capacity BIGINT DEFAULT NULL;
  DECLARE v_there TINYINT;
  DECLARE v_woken BLOB DEFAULT '';
  {transaction}
  INSERT INTO lockkit_names (namespace, space, name, last) VALUES (p_namespace, p_space, p_name, 0)
  ON DUPLICATE KEY UPDATE has_claim_rows = has_claim_rows;
  CALL lockkit_lock_queue(p_namespace, p_space, p_name, v_now, v_there);
  CALL lockkit_promote(p_namespace, p_space, p_name, v_now, v_woken);
  SET v_capacity = p_capacity;
  IF NOT p_always THEN
    -- Without a limit of its own it keeps the one that it is in use with.
    SET v_capacity = NULL;
    SELECT fixed_limit INTO v_capacity FROM lockkit_names
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_capacity IS NULL THEN
      SELECT capacity INTO v_capacity FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1;
    END IF;
    SET v_capacity = COALESCE(v_capacity, p_capacity);
  END IF;
  UPDATE lockkit_names SET fixed_limit = v_capacity
  WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  UPDATE lockkit_claims SET capacity = v_capacity
  WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  CALL lockkit_promote(p_namespace, p_space, p_name, v_now, v_woken);
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_capacity AS capacity, v_woken AS woken;
END
--;
