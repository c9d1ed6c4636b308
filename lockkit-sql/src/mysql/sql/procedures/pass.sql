-- Hands an exclusive lock over: takes its holder out, lets the next claim hold, and puts a new claim at the end, in
-- a transaction of its own. It reads the queue from the sequence number of the holder that leaves, never from the start,
-- where rows of earlier holders may not be purged yet. Anything else is left to `lockkit_submit`, in the same
-- request, with nothing written.
-- In: leaving, id: of the claims; since, sequence, ahead: what an earlier answer said of this queue, if there was one;
-- every: both operations, as `lockkit_submit` has them, for which they are 0 and 1. The others as the columns.
-- Row: as of `lockkit_submit`; and what the next call may say: since: when this was; sequence: of the new holder;
-- ahead. Whatever changes a queue writes its `since`: while that is the same, so is all else.
CREATE PROCEDURE lockkit_pass(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_leaving BINARY(16), IN p_id BINARY(16), IN p_capacity BIGINT, IN p_hold_ttl BIGINT,
  IN p_wait_ttl BIGINT, IN p_identity BLOB, IN p_note BLOB,
  IN p_since BIGINT, IN p_sequence BIGINT, IN p_ahead BIGINT, IN p_every LONGBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_since, v_now, v_last, v_sequence, v_next, v_hold_ttl BIGINT DEFAULT NULL;
  DECLARE v_done TINYINT DEFAULT 0;
  -- A repeated acquire: the claim is in the queue already.
  DECLARE EXIT HANDLER FOR 1062
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL lockkit_submit('', 0, '', 0, '', p_every, p_every);
  END;
  {transaction}
  SET v_since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  -- A claim waits, and there will be one: `next` is not 0 before and after. `ends` may be early, which costs a
  -- renewal.
  UPDATE lockkit_names
  SET last = LAST_INSERT_ID(GREATEST(last + 1, v_since)), since = v_since,
      ends = v_since + LEAST(p_hold_ttl, p_wait_ttl)
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND has_claim_rows = 1
    AND next <> 0 AND fixed_limit IS NULL AND since = p_since AND since <= v_since;
  IF ROW_COUNT() = 1 THEN
    SET v_sequence = p_sequence;
  ELSE
    UPDATE lockkit_names
    SET last = LAST_INSERT_ID(GREATEST(last + 1, v_since)), since = v_since,
        ends = v_since + LEAST(p_hold_ttl, p_wait_ttl)
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND has_claim_rows = 1
      AND next <> 0 AND fixed_limit IS NULL AND since <= v_since;
    IF ROW_COUNT() = 1 THEN
      SET p_ahead = 0;
      SELECT sequence INTO v_sequence FROM lockkit_claims
      WHERE id = p_leaving AND namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;
  SET v_last = LAST_INSERT_ID(), v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_sequence IS NOT NULL THEN
    -- No claim is ahead of an exclusive holder, so the next one is behind it.
    SELECT MIN(sequence) INTO v_next FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence > v_sequence;
    UPDATE lockkit_claims
    SET held = v_now, set_at = v_now, expires = GREATEST(expires, v_now + hold_ttl),
        hold_ttl = LAST_INSERT_ID(hold_ttl)
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_next
      AND held IS NULL AND expires > v_now AND weight = capacity AND broken = 0;
    IF ROW_COUNT() = 1 THEN
      SET v_hold_ttl = LAST_INSERT_ID();
      -- The row of the claim that leaves becomes that of the one that comes.
      UPDATE lockkit_claims
      SET sequence = v_last, token = v_last, id = p_id, weight = p_capacity, capacity = p_capacity,
          hold_ttl = p_hold_ttl, wait_ttl = p_wait_ttl, queued = v_now, expires = v_now + p_wait_ttl,
          held = NULL, broken = 0, identity = p_identity, note = p_note, set_at = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_sequence
        AND id = p_leaving AND held IS NOT NULL AND expires > v_now AND weight = capacity AND fenced = 0;
      SET v_done = ROW_COUNT();
    END IF;
  END IF;
  IF v_done THEN
    IF v_hold_ttl < LEAST(p_hold_ttl, p_wait_ttl) THEN
      UPDATE lockkit_names SET ends = v_now + v_hold_ttl
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
    IF p_ahead = 0 THEN
      -- A longer queue costs no more: beyond 64, how many are ahead is said by the next poll.
      SELECT COUNT(*) INTO p_ahead FROM (
        SELECT 1 FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence >= v_next
          AND sequence < v_last LIMIT 64) AS first;
    END IF;
    SELECT 0 AS fast, v_since AS now, CONCAT(
      '00000,1,,,,,0,;00001,2,', v_last, ',', p_hold_ttl, ',', p_ahead, ',',
      LEAST(p_hold_ttl, p_wait_ttl, v_hold_ttl), ',0,', LEFT(SHA2(id, 256), 16),
      LPAD(HEX(token), 16, '0'), ';') AS answers, sequence, p_ahead AS ahead
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_next;
    COMMIT AND NO CHAIN NO RELEASE;
  ELSE
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL lockkit_submit('', 0, '', 0, '', p_every, p_every);
  END IF;
END
--;
