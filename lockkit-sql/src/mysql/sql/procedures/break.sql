-- Breaks the claim of a queue that has this token.
-- In: force (1: take it out at once); record (JSON); keep: how long the record stays at least.
-- Row: outcome 1 there was one, 0 there was none; woken.
CREATE PROCEDURE lockkit_break(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_token BIGINT,
  IN p_force TINYINT, IN p_record BLOB, IN p_keep BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_sequence, v_until BIGINT DEFAULT NULL;
  DECLARE v_there TINYINT;
  DECLARE v_id BINARY(16);
  DECLARE v_woken BLOB DEFAULT '';
  {transaction}
  CALL lockkit_lock_queue(p_namespace, p_space, p_name, v_now, v_there);
  IF v_there THEN
    CALL lockkit_promote(p_namespace, p_space, p_name, v_now, v_woken);
  END IF;
  SELECT sequence, id, GREATEST(v_now + GREATEST(p_keep, hold_ttl, wait_ttl), expires + p_keep)
  INTO v_sequence, v_id, v_until
  FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND token = p_token
    AND expires > v_now LIMIT 1;
  IF v_sequence IS NOT NULL THEN
    INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
    VALUES (p_namespace, p_space, p_name, v_id, p_record, v_until);
    -- Of a queue, only the last one is shown.
    DELETE FROM lockkit_breaks
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND expires <= v_now
      AND n < LAST_INSERT_ID();
    IF p_force THEN
      CALL lockkit_remove_claim(p_namespace, p_space, p_name, v_sequence);
      CALL lockkit_promote(p_namespace, p_space, p_name, v_now, v_woken);
    ELSE
      UPDATE lockkit_claims SET broken = 1
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
    END IF;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_sequence IS NOT NULL AS outcome, v_woken AS woken;
END
--;
