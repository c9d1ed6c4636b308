-- Puts a claim at the end of its queue, inside a transaction of the caller's.
-- In: as the columns; try: 1: leave at once if it cannot hold.
-- Out: outcome 0 busy, 1 holds, 2 waits, 3 another limit, 4 it was broken; token, or the limit in use; ttl; ahead;
-- look: until a claim ahead ends; uncontended: 1 when it is in the name's own row. InOut: woken.
CREATE PROCEDURE lockkit_enqueue(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_weight BIGINT, IN p_capacity BIGINT, IN p_hold_ttl BIGINT, IN p_wait_ttl BIGINT,
  IN p_identity BLOB, IN p_note BLOB, IN p_try TINYINT,
  OUT p_outcome TINYINT, OUT p_token BIGINT, OUT p_ttl BIGINT, OUT p_ahead BIGINT,
  OUT p_next_poll BIGINT, INOUT p_woken BLOB, OUT p_uncontended TINYINT)
SQL SECURITY INVOKER
main: BEGIN
  DECLARE v_now, v_last, v_expires, v_set, v_held, v_sequence, v_weight, v_capacity, v_fixed_limit, v_next, v_ends,
    v_since BIGINT DEFAULT NULL;
  DECLARE v_has_claim_rows, v_there, v_broken TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16) DEFAULT NULL;

  SET p_outcome = 0, p_ahead = 0, p_uncontended = 0;
  -- Takes the row's lock whether it was there or not.
  INSERT INTO lockkit_names (namespace, space, name, last) VALUES (p_namespace, p_space, p_name, 0)
  ON DUPLICATE KEY UPDATE has_claim_rows = has_claim_rows;
  SELECT last, has_claim_rows, id, weight, capacity, expires, set_at, fixed_limit, next, ends, since
  INTO v_last, v_has_claim_rows, v_id, v_weight, v_capacity, v_expires, v_set, v_fixed_limit, v_next, v_ends,
       v_since
  FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_last = 0 THEN
    -- Names that were removed left their tokens here.
    SELECT floor INTO v_last FROM lockkit_meta WHERE one = 1;
  END IF;

  IF v_id IS NOT NULL AND v_expires > v_now AND NOT v_has_claim_rows THEN
    IF v_set > v_now THEN
      UPDATE lockkit_names SET expires = expires - set_at + v_now, set_at = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
    IF v_capacity <> p_capacity THEN
      SET p_outcome = 3, p_token = v_capacity;
      LEAVE main;
    END IF;
    IF v_id = p_id THEN
      -- What is in its queue already stays where it is.
      UPDATE lockkit_names SET expires = GREATEST(expires, v_now + hold_ttl), set_at = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SELECT hold_ttl INTO p_ttl FROM lockkit_names
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET p_outcome = 1, p_token = v_last, p_uncontended = 1;
      LEAVE main;
    END IF;
    IF p_try AND v_weight + p_weight > v_capacity THEN
      LEAVE main;
    END IF;
    CALL lockkit_lock_queue(p_namespace, p_space, p_name, v_now, v_there);
    SET v_has_claim_rows = 1;
  END IF;

  IF v_has_claim_rows AND NOT p_try AND v_next <> 0 AND v_ends > v_now AND v_since <= v_now
    AND v_fixed_limit IS NULL THEN
    -- A claim waits, and none has ended: this one waits behind all, unless it is in the queue already.
    SELECT COUNT(*), MAX(capacity), MIN(expires), MAX(id = p_id)
    INTO p_ahead, v_capacity, v_expires, v_there FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_capacity = p_capacity AND v_expires > v_now AND NOT v_there THEN
      SET p_token = GREATEST(v_last + 1, v_now), p_ttl = p_hold_ttl, p_outcome = 2, p_next_poll = v_ends - v_now;
      INSERT INTO lockkit_claims
        (namespace, space, name, sequence, token, id, weight, capacity, hold_ttl, wait_ttl, queued,
         expires, identity, note, set_at)
      VALUES (p_namespace, p_space, p_name, p_token, p_token, p_id, p_weight, p_capacity, p_hold_ttl,
              p_wait_ttl, v_now, v_now + p_wait_ttl, p_identity, p_note, v_now);
      UPDATE lockkit_names SET last = p_token, since = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      LEAVE main;
    END IF;
    SET p_ahead = 0;
  END IF;

  IF v_has_claim_rows THEN
    CALL lockkit_promote(p_namespace, p_space, p_name, v_now, p_woken);
    SET v_capacity = v_fixed_limit;
    IF v_capacity IS NULL THEN
      SELECT capacity INTO v_capacity FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1;
    END IF;
    SELECT sequence, expires, held, broken INTO v_sequence, v_expires, v_held, v_broken
    FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_held IS NOT NULL AND v_expires <= v_now THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'lockkit: this claim has ended, but a transaction still relies on it';
    END IF;
    IF v_sequence IS NOT NULL AND v_held IS NULL AND (p_try OR v_expires <= v_now) THEN
      -- A try does not wait; and what has ended never revives, but begins again at the end.
      DELETE FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
      CALL lockkit_promote(p_namespace, p_space, p_name, v_now, p_woken);
      IF p_try THEN
        LEAVE main;
      END IF;
      SET v_sequence = NULL;
    END IF;
    IF v_sequence IS NOT NULL AND v_broken THEN
      SET p_outcome = 4;
      LEAVE main;
    END IF;
    -- What is in its queue is known by its id, whatever limit it was made with.
    IF v_sequence IS NULL AND v_capacity <> p_capacity THEN
      SET p_outcome = 3, p_token = v_capacity;
      LEAVE main;
    END IF;
    SET v_has_claim_rows = NULL;
    SELECT has_claim_rows INTO v_has_claim_rows FROM lockkit_names
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  END IF;

  IF v_sequence IS NOT NULL THEN
    UPDATE lockkit_claims
    SET expires = GREATEST(expires, v_now + IF(held IS NULL, wait_ttl, hold_ttl)), set_at = v_now
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
    SET p_outcome = 1;
  ELSEIF NOT v_has_claim_rows AND p_weight <= p_capacity THEN
    SET v_sequence = GREATEST(v_last + 1, v_now);
    UPDATE lockkit_names
    SET last = v_sequence, id = p_id, weight = p_weight, capacity = p_capacity,
        hold_ttl = p_hold_ttl, wait_ttl = p_wait_ttl, since = v_now, set_at = v_now,
        expires = v_now + p_hold_ttl,
        identity = p_identity, note = p_note
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    SET p_outcome = 1, p_uncontended = 1, p_token = v_sequence, p_ttl = p_hold_ttl;
  ELSE
    -- It holds at once when no claim waits (holders come first, so the last row tells) and the sum
    -- leaves room.
    SET v_held = v_now;
    SELECT held INTO v_held FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name
    ORDER BY sequence DESC LIMIT 1;
    IF v_held IS NOT NULL THEN
      SELECT COALESCE(SUM(weight), 0) INTO v_weight FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET v_held = IF(v_weight + p_weight <= p_capacity, v_now, NULL);
    END IF;
    IF v_held IS NOT NULL OR NOT p_try THEN
      SET v_sequence = GREATEST(v_last + 1, v_now), p_outcome = 1;
      INSERT INTO lockkit_claims
        (namespace, space, name, sequence, token, id, weight, capacity, hold_ttl, wait_ttl, queued,
         expires, held, identity, note, set_at)
      VALUES (p_namespace, p_space, p_name, v_sequence, v_sequence, p_id, p_weight, p_capacity,
              p_hold_ttl, p_wait_ttl, v_now,
              v_now + IF(v_held IS NULL, p_wait_ttl, p_hold_ttl), v_held, p_identity, p_note,
              v_now);
      -- The queue may have been empty: `ends` is when its first are to be looked at.
      UPDATE lockkit_names
      SET last = v_sequence, since = v_now, has_claim_rows = 1, id = NULL, expires = 0,
          ends = CASE WHEN v_held IS NULL AND next <> 0 THEN ends
                      ELSE LEAST(IF(ends = 0, 9223372036854775807, ends),
                                 v_now + IF(v_held IS NULL, p_wait_ttl, p_hold_ttl)) END,
          next = IF(v_held IS NULL AND next = 0, v_sequence, next)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;

  IF p_outcome AND NOT p_uncontended THEN
    SELECT IF(held IS NULL, 2, 1), token, hold_ttl INTO p_outcome, p_token, p_ttl
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence;
    IF p_outcome = 2 THEN
      SELECT COUNT(*) INTO p_ahead FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence < v_sequence;
      SELECT GREATEST(1, ends - v_now) INTO p_next_poll FROM lockkit_names
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;
END
--;
