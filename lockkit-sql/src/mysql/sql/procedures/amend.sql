-- Changes one claim that is in its queue: `what` is 0, its lease ends `value` from now; 1, it becomes
-- shared where it is; 2, its token becomes at least `value`, and every later one of its queue
-- greater; 3, transactions of its owner's may rely on it.
-- Row: n 0; state 1 it holds, 2 it waits, 3 it was broken or is not there; token; ttl; ahead; look;
-- record: how it was broken; woken.
CREATE PROCEDURE lockkit_amend(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_what TINYINT, IN p_value BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_sequence, v_token, v_held, v_ttl, v_ahead, v_expires, v_top BIGINT DEFAULT NULL;
  DECLARE v_there, v_outcome, v_broken TINYINT DEFAULT NULL;
  DECLARE v_inserted INT DEFAULT 0;
  DECLARE v_record BLOB DEFAULT NULL;
  DECLARE v_woken BLOB DEFAULT '';
  {transaction}
  IF p_what = 3 THEN
    -- No other transaction sees the row before it is known that the claim holds: the transaction of another fence that
    -- looks for it waits for this one's end. Before the name's row is locked: a transaction that looked for
    -- a row in vain keeps others from inserting near it, and this must not keep a renewal waiting. IGNORE
    -- shares the lock of a row that is there with the transactions that rely on it.
    INSERT IGNORE INTO lockkit_fences (id) VALUES (p_id);
    SET v_inserted = ROW_COUNT();
  END IF;
  CALL lockkit_lock_queue(p_namespace, p_space, p_name, v_now, v_there);
  SELECT sequence, token, expires, held, broken INTO v_sequence, v_token, v_expires, v_held, v_broken
  FROM lockkit_claims
  WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
  IF v_expires <= v_now THEN
    CALL lockkit_remove_claim(p_namespace, p_space, p_name, v_sequence);
    SET v_sequence = NULL;
  END IF;
  IF v_sequence IS NOT NULL THEN
    IF p_what = 0 THEN
      UPDATE lockkit_claims
      SET expires = IF(broken, LEAST(expires, v_now + p_value), v_now + p_value), set_at = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence
        AND held IS NOT NULL;
    ELSE
      UPDATE lockkit_claims
      SET expires = GREATEST(LEAST(expires, expires - set_at + v_now),
                             v_now + IF(held IS NULL, wait_ttl, hold_ttl)), set_at = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence
        AND NOT broken;
    END IF;
    IF p_what = 1 AND p_space = 0 THEN
      UPDATE lockkit_claims SET weight = 1
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
    END IF;
    IF p_what = 3 AND v_held IS NOT NULL AND NOT v_broken THEN
      UPDATE lockkit_claims SET fenced = 1
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
    END IF;
    IF p_what = 2 AND v_token < p_value THEN
      -- A raise lifts the waiters behind it as well, or they would get lower tokens later; their
      -- distances stay, so the order does. Shared claims that hold already do not conflict with it.
      UPDATE lockkit_claims SET token = GREATEST(token, p_value + (sequence - v_sequence))
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence >= v_sequence
        AND (sequence = v_sequence OR held IS NULL);
      SELECT MAX(token) INTO v_top FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      UPDATE lockkit_names SET last = GREATEST(last, v_top)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;
  IF v_there THEN
    CALL lockkit_promote(p_namespace, p_space, p_name, v_now, v_woken);
  END IF;
  SET v_outcome = 3;
  SELECT CASE WHEN broken THEN 3 WHEN held IS NULL THEN 2 ELSE 1 END, token, hold_ttl
  INTO v_outcome, v_token, v_ttl
  FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
  IF v_outcome = 2 THEN
    SELECT COUNT(*) INTO v_ahead FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence < v_sequence;
  ELSEIF v_outcome <> 1 THEN
    SELECT record INTO v_record FROM lockkit_breaks WHERE id = p_id ORDER BY n DESC LIMIT 1;
  END IF;
  IF v_inserted AND v_outcome <> 1 THEN
    DELETE FROM lockkit_fences WHERE id = p_id;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT 0 AS n, v_outcome AS state, v_token AS token, v_ttl AS ttl, COALESCE(v_ahead, 0) AS ahead,
         NULL AS next_poll, v_record AS record, v_woken AS woken;
END
--;
