-- Hands an exclusive lock over: takes its holder out, lets the next claim hold, and puts a new claim at the end, in
-- a transaction of its own. It reads the queue from the place of the holder that leaves, never from the start,
-- where rows of earlier holders may not be purged yet. Anything else is left to `lockkit_submit`, in the same
-- request, with nothing written.
-- In: leaving, id: of the claims; every: both operations, as `lockkit_submit` has them, for which they are 0 and 1.
-- The others as the columns.
-- Row: as of `lockkit_submit`.
CREATE PROCEDURE lockkit_pass(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_leaving BINARY(16), IN p_id BINARY(16), IN p_capacity BIGINT, IN p_hold_ttl BIGINT,
  IN p_wait_ttl BIGINT, IN p_identity BLOB, IN p_note BLOB, IN p_every LONGBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_last, v_place, v_next, v_token, v_hold_ttl, v_expires, v_ahead BIGINT DEFAULT NULL;
  DECLARE v_fits TINYINT DEFAULT 0;
  DECLARE v_holder BINARY(16);
  {transaction}
  -- A claim waits, and there will be one: `next` is not 0 before and after. `ends` may be early, which costs a
  -- renewal.
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  UPDATE lockkit_names
  SET last = LAST_INSERT_ID(GREATEST(last + 1, v_now)), since = v_now,
      ends = v_now + LEAST(p_hold_ttl, p_wait_ttl)
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND has_claim_rows = 1
    AND next <> 0 AND fixed_limit IS NULL AND since <= v_now;
  IF ROW_COUNT() = 1 THEN
    SET v_last = LAST_INSERT_ID(), v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    -- No claim is ahead of an exclusive holder, so the next one is behind it.
    SELECT place INTO v_place FROM lockkit_claims
    WHERE id = p_leaving AND namespace = p_namespace AND space = p_space AND name = p_name
      AND held IS NOT NULL AND expires > v_now AND weight = capacity AND fenced = 0;
  END IF;
  IF v_place IS NOT NULL THEN
    SELECT place, id, token, hold_ttl, GREATEST(expires, v_now + hold_ttl),
           held IS NULL AND expires > v_now AND weight = capacity AND broken = 0
    INTO v_next, v_holder, v_token, v_hold_ttl, v_expires, v_fits
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place > v_place
    ORDER BY place LIMIT 1;
  END IF;
  -- A repeated acquire may be in the queue already.
  IF v_fits THEN
    SELECT COUNT(*) = 0 INTO v_fits FROM lockkit_claims WHERE id = p_id;
  END IF;
  IF v_fits THEN
    UPDATE lockkit_claims SET held = v_now, set_at = v_now, expires = v_expires
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_next;
    -- The row of the claim that leaves becomes that of the one that comes.
    UPDATE lockkit_claims
    SET place = v_last, token = v_last, id = p_id, weight = p_capacity, capacity = p_capacity,
        hold_ttl = p_hold_ttl, wait_ttl = p_wait_ttl, queued = v_now, expires = v_now + p_wait_ttl,
        held = NULL, broken = 0, identity = p_identity, note = p_note, set_at = v_now
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    IF v_hold_ttl < LEAST(p_hold_ttl, p_wait_ttl) THEN
      UPDATE lockkit_names SET ends = v_expires
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
    -- A longer queue costs no more: beyond 64, how many are ahead is said by the next poll.
    SELECT COUNT(*) INTO v_ahead FROM (
      SELECT 1 FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place >= v_next
        AND place < v_last LIMIT 64) AS first;
    COMMIT AND NO CHAIN NO RELEASE;
    SELECT 0 AS fast, v_now AS now, CONCAT(
      '00000,1,,,,,0,;00001,2,', v_last, ',', p_hold_ttl, ',', v_ahead, ',',
      LEAST(p_hold_ttl, p_wait_ttl, v_hold_ttl), ',0,', LEFT(SHA2(v_holder, 256), 16),
      LPAD(HEX(v_token), 16, '0'), ';') AS answers;
  ELSE
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL lockkit_submit('', 0, '', 0, '', p_every, p_every);
  END IF;
END
--;
