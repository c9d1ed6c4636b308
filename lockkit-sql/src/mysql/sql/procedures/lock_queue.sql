-- Locks the name's row and makes its queue one of lockkit_claims, so that an operation has one place to
-- look at. Inside a transaction of the caller's.
-- Out: now, read after the row was locked (every statement of a procedure has a time of its own),
-- so that a wait for the row does not make it old; there: 0 when the name has no row.
CREATE PROCEDURE lockkit_lock_queue(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  OUT p_now BIGINT, OUT p_there TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_has_claim_rows TINYINT DEFAULT NULL;
  DECLARE v_id BINARY(16) DEFAULT NULL;
  SELECT has_claim_rows, id INTO v_has_claim_rows, v_id FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET p_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET p_there = v_has_claim_rows IS NOT NULL;
  IF v_id IS NOT NULL THEN
    INSERT INTO lockkit_claims
      (namespace, space, name, sequence, token, id, weight, capacity, hold_ttl, wait_ttl, queued,
       expires, held, identity, note, set_at)
    SELECT namespace, space, name, last, last, id, weight, capacity, hold_ttl, wait_ttl, since,
           LEAST(expires, expires - set_at + p_now), since, identity, note, LEAST(set_at, p_now)
    FROM lockkit_names WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    UPDATE lockkit_names SET id = NULL, has_claim_rows = 1, next = 0, ends = expires, expires = 0
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  END IF;
END
--;
