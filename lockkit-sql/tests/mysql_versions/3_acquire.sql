-- The acquire procedure of version 3, which was that of versions 1 and 2 in effect.
CREATE PROCEDURE lockkit_acquire(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_weight BIGINT, IN p_capacity BIGINT, IN p_hold_ttl BIGINT, IN p_wait_ttl BIGINT,
  IN p_identity BLOB, IN p_note BLOB, IN p_try TINYINT)
SQL SECURITY INVOKER
main: BEGIN
  DECLARE v_now, v_last, v_expires, v_held, v_place, v_token, v_weight, v_ahead BIGINT DEFAULT NULL;
  DECLARE v_capacity, v_ttl, v_look, v_given BIGINT DEFAULT NULL;
  DECLARE v_crowd, v_there, v_alone, v_broken TINYINT DEFAULT 0;
  DECLARE v_outcome TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16) DEFAULT NULL;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF NOT @@autocommit THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'lockkit needs connections on which autocommit is on';
  END IF;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  -- Takes the row's lock whether it was there or not.
  INSERT INTO lockkit_names (namespace, space, name, last) VALUES (p_namespace, p_space, p_name, 0)
  ON DUPLICATE KEY UPDATE crowd = crowd;
  SELECT last, crowd, id, weight, capacity, expires
  INTO v_last, v_crowd, v_id, v_weight, v_capacity, v_expires
  FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_last = 0 THEN
    -- Names that were removed left their tokens here.
    SET v_last = (SELECT floor FROM lockkit_meta WHERE one = 1);
  END IF;
  IF p_space = 1 THEN
    SET v_given = (SELECT capacity FROM lockkit_limits
      WHERE namespace = p_namespace AND space = p_space AND name = p_name);
    IF v_given IS NOT NULL AND NOT v_crowd THEN
      -- The row is new, since the table was emptied.
      CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
      SET v_crowd = 1;
    END IF;
  END IF;

  IF v_id IS NOT NULL AND v_expires > v_now AND NOT v_crowd THEN
    IF v_capacity <> p_capacity THEN
      ROLLBACK;
      SELECT 3 AS outcome, v_capacity AS token, NULL AS ttl, NULL AS ahead, NULL AS look,
             NULL AS woken, 0 AS alone;
      LEAVE main;
    END IF;
    IF v_id = p_id THEN
      -- What is in line already stays where it is.
      UPDATE lockkit_names SET expires = GREATEST(expires, v_now + hold_ttl)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET v_ttl = (SELECT hold_ttl FROM lockkit_names
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
      COMMIT;
      SELECT 1 AS outcome, v_last AS token, v_ttl AS ttl, 0 AS ahead, NULL AS look,
             NULL AS woken, 1 AS alone;
      LEAVE main;
    END IF;
    IF p_try AND v_weight + p_weight > v_capacity THEN
      COMMIT;
      SELECT 0 AS outcome, NULL AS token, NULL AS ttl, NULL AS ahead, NULL AS look,
             NULL AS woken, 0 AS alone;
      LEAVE main;
    END IF;
    CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
    SET v_crowd = 1;
  END IF;

  IF v_crowd THEN
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
    SET v_capacity = COALESCE(v_given, (SELECT capacity FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1));
    SELECT place, expires, held, broken INTO v_place, v_expires, v_held, v_broken
    FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_held IS NOT NULL AND v_expires <= v_now THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'lockkit: this claim has ended, but a transaction still relies on it';
    END IF;
    IF v_place IS NOT NULL AND v_held IS NULL AND (p_try OR v_expires <= v_now) THEN
      -- A try does not wait; and what has ended never revives, but begins anew at the end.
      DELETE FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
      CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
      IF p_try THEN
        COMMIT;
        SELECT 0 AS outcome, NULL AS token, NULL AS ttl, NULL AS ahead, NULL AS look,
               v_woken AS woken, 0 AS alone;
        LEAVE main;
      END IF;
      SET v_place = NULL;
    END IF;
    -- What is in line is known by its id, whatever limit it was made with.
    IF v_place IS NULL AND v_capacity <> p_capacity THEN
      ROLLBACK;
      SELECT 3 AS outcome, v_capacity AS token, NULL AS ttl, NULL AS ahead, NULL AS look,
             NULL AS woken, 0 AS alone;
      LEAVE main;
    END IF;
    SET v_crowd = (SELECT crowd FROM lockkit_names
      WHERE namespace = p_namespace AND space = p_space AND name = p_name);
  END IF;

  IF v_place IS NOT NULL THEN
    UPDATE lockkit_claims
    SET expires = GREATEST(expires, v_now + IF(held IS NULL, wait_ttl, hold_ttl))
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place
      AND NOT broken;
    SET v_outcome = 1;
  ELSEIF NOT v_crowd AND p_weight <= p_capacity THEN
    SET v_place = GREATEST(v_last + 1, v_now);
    UPDATE lockkit_names
    SET last = v_place, id = p_id, weight = p_weight, capacity = p_capacity,
        hold_ttl = p_hold_ttl, wait_ttl = p_wait_ttl, since = v_now, expires = v_now + p_hold_ttl,
        identity = p_identity, note = p_note
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    SET v_outcome = 1, v_alone = 1, v_token = v_place, v_held = v_now, v_ahead = 0,
        v_ttl = p_hold_ttl;
  ELSE
    -- It holds at once when nobody waits (holders come first, so the last row tells) and the sum
    -- leaves room.
    SET v_held = v_now;
    SELECT held INTO v_held FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name
    ORDER BY place DESC LIMIT 1;
    IF v_held IS NOT NULL THEN
      SET v_weight = (SELECT COALESCE(SUM(weight), 0) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
      SET v_held = IF(v_weight + p_weight <= p_capacity, v_now, NULL);
    END IF;
    IF v_held IS NOT NULL OR NOT p_try THEN
      SET v_place = GREATEST(v_last + 1, v_now), v_outcome = 1;
      INSERT INTO lockkit_claims
        (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued,
         expires, held, identity, note)
      VALUES (p_namespace, p_space, p_name, v_place, v_place, p_id, p_weight, p_capacity,
              p_hold_ttl, p_wait_ttl, v_now,
              v_now + IF(v_held IS NULL, p_wait_ttl, p_hold_ttl), v_held, p_identity, p_note);
      -- The list may have been empty: `ends` is when its first are to be looked at.
      UPDATE lockkit_names
      SET last = v_place, since = v_now, crowd = 1, id = NULL, expires = 0,
          ends = CASE WHEN v_held IS NULL AND next <> 0 THEN ends
                      ELSE LEAST(IF(ends = 0, 9223372036854775807, ends),
                                 v_now + IF(v_held IS NULL, p_wait_ttl, p_hold_ttl)) END,
          next = IF(v_held IS NULL AND next = 0, v_place, next)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;

  IF v_outcome AND NOT v_alone THEN
    SELECT IF(held IS NULL, 2, 1), token, hold_ttl INTO v_outcome, v_token, v_ttl
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    IF v_outcome = 2 THEN
      SET v_ahead = (SELECT COUNT(*) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place < v_place);
      SET v_look = (SELECT GREATEST(1, ends - v_now)
        FROM lockkit_names
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
    END IF;
  END IF;
  COMMIT;
  SELECT v_outcome AS outcome, v_token AS token, v_ttl AS ttl, COALESCE(v_ahead, 0) AS ahead,
         v_look AS look, v_woken AS woken, v_alone AS alone;
END
