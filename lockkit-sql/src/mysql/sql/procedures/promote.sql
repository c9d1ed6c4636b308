-- Lets a queue of lockkit_claims move on: removes the holders that have ended, then walks along the
-- first waiters, removing the ended ones and making holders of those who fit, up to the first that
-- must wait. Inside a transaction that has locked the name's row.
-- Leases that were set while the clock was ahead count from now: `since` tells, which every operation that sets
-- one writes.
-- InOut: woken: the tags of the new holders, 8 bytes each, and their tokens, appended (as many as fit): what
-- stands for a claim where others can see it, made of its id, and no way back. One that was broken while it waited
-- keeps its lease and has the token 0: it holds no lock, but keeps others out until that lease ends.
--
-- Costs one look at each holder and some statements for each claim that leaves or begins to hold;
-- those behind are not looked at.
CREATE PROCEDURE lockkit_promote(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_now BIGINT, INOUT p_woken BLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_first, v_sequence, v_next, v_token, v_weight, v_capacity, v_expires, v_ends BIGINT DEFAULT NULL;
  DECLARE v_fixed_limit BIGINT DEFAULT NULL;
  DECLARE v_used BIGINT DEFAULT 0;
  DECLARE v_holders INT DEFAULT 0;
  DECLARE v_back TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16);

  SELECT sequence INTO v_first FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND held IS NULL
  ORDER BY sequence LIMIT 1;

  SELECT since > p_now, fixed_limit INTO v_back, v_fixed_limit FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  IF v_back THEN
    UPDATE lockkit_claims SET expires = expires - set_at + p_now, set_at = p_now
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND set_at > p_now;
  END IF;

  removal: LOOP
    SET v_next = NULL;
    SELECT sequence INTO v_next FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name
      AND sequence < COALESCE(v_first, 9223372036854775807) AND expires <= p_now
      AND sequence > COALESCE(v_sequence, 0)
    ORDER BY sequence LIMIT 1;
    IF v_next IS NULL THEN
      LEAVE removal;
    END IF;
    SET v_sequence = v_next;
    CALL lockkit_remove_claim(p_namespace, p_space, p_name, v_sequence);
  END LOOP;

  SELECT COALESCE(SUM(weight), 0), COUNT(*),
         MIN(IF(expires <= p_now, p_now + 100000, expires))
  INTO v_used, v_holders, v_ends
  FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name
    AND sequence < COALESCE(v_first, 9223372036854775807);

  walk: WHILE v_first IS NOT NULL DO
    SELECT id, IF(broken, 0, token), weight, capacity, expires
    INTO v_id, v_token, v_weight, v_capacity, v_expires
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_first;
    IF v_expires <= p_now THEN
      DELETE FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_first;
    ELSEIF v_used + v_weight <= v_capacity THEN
      UPDATE lockkit_claims
      SET held = p_now, set_at = p_now, expires = IF(broken, expires, GREATEST(expires, p_now + hold_ttl))
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_first;
      SET v_used = v_used + v_weight, v_holders = v_holders + 1;
      SELECT expires INTO v_expires FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = v_first;
      SET v_ends = LEAST(COALESCE(v_ends, v_expires), v_expires);
      IF LENGTH(p_woken) < 8000 THEN
        SET p_woken = CONCAT(p_woken, UNHEX(LEFT(SHA2(v_id, 256), 16)),
                             UNHEX(LPAD(HEX(v_token), 16, '0')));
      END IF;
    ELSE
      SET v_ends = LEAST(COALESCE(v_ends, v_expires), v_expires);
      LEAVE walk;
    END IF;
    SET v_next = NULL;
    SELECT sequence INTO v_next FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence > v_first
    ORDER BY sequence LIMIT 1;
    SET v_first = v_next;
  END WHILE;

  UPDATE lockkit_names
  SET has_claim_rows = v_first IS NOT NULL OR v_holders > 0 OR v_fixed_limit IS NOT NULL,
      next = COALESCE(v_first, 0),
      ends = COALESCE(v_ends, 0), since = p_now
  WHERE namespace = p_namespace AND space = p_space AND name = p_name;
END
--;
