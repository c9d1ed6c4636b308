-- Puts a claim at the end of its list.
-- In: as the columns; try: 1: leave at once if it cannot hold.
-- Row: outcome 1 in line, 0 busy; token; held (NULL: waits); ahead; ttl; place; alone: 1 when it
-- stands in the name's own row; promoted.
-- Fails with `lockkit: limit N`; then nothing was done.
CREATE PROCEDURE lockkit_acquire(
  IN p_id BINARY(16), IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_weight BIGINT, IN p_capacity BIGINT, IN p_hold_ttl BIGINT, IN p_wait_ttl BIGINT,
  IN p_identity BLOB, IN p_note BLOB, IN p_try TINYINT)
SQL SECURITY INVOKER
main: BEGIN
  DECLARE v_now, v_last, v_expires, v_held, v_place, v_token, v_weight, v_ahead BIGINT DEFAULT NULL;
  DECLARE v_capacity, v_ttl BIGINT DEFAULT NULL;
  DECLARE v_crowd, v_there, v_alone, v_broken TINYINT DEFAULT 0;
  DECLARE v_outcome TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16) DEFAULT NULL;
  DECLARE v_promoted TEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_told VARCHAR(64);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  -- Takes the row's lock whether it was there or not.
  INSERT INTO lockkit_names (namespace, space, name, last) VALUES (p_namespace, p_space, p_name, 0)
  ON DUPLICATE KEY UPDATE crowd = crowd;
  SELECT last, crowd, id, weight, capacity, expires
  INTO v_last, v_crowd, v_id, v_weight, v_capacity, v_expires
  FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000;
  IF v_last = 0 THEN
    -- Names that were removed left their tokens here.
    SET v_last = (SELECT floor FROM lockkit_meta WHERE one = 1);
  END IF;

  IF v_id IS NOT NULL AND v_expires > v_now AND NOT v_crowd THEN
    IF v_capacity <> p_capacity THEN
      SET v_told = CONCAT('lockkit: limit ', v_capacity);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_told;
    END IF;
    IF v_id = p_id THEN
      -- What is in line already stays where it is.
      UPDATE lockkit_names SET expires = GREATEST(expires, v_now + hold_ttl)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      COMMIT;
      SELECT 1 AS outcome, last AS token, since AS held, 0 AS ahead, hold_ttl AS ttl, last AS place,
             1 AS alone, '' AS promoted
      FROM lockkit_names WHERE namespace = p_namespace AND space = p_space AND name = p_name
        AND id = p_id
      UNION ALL SELECT 0, NULL, NULL, NULL, NULL, NULL, 0, '' LIMIT 1;
      LEAVE main;
    END IF;
    IF p_try AND v_weight + p_weight > v_capacity THEN
      COMMIT;
      SELECT 0 AS outcome, NULL AS token, NULL AS held, NULL AS ahead, NULL AS ttl, NULL AS place,
             0 AS alone, '' AS promoted;
      LEAVE main;
    END IF;
    CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
    SET v_crowd = 1;
  END IF;

  IF v_crowd THEN
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_promoted);
    SET v_capacity = (SELECT capacity FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1);
    IF v_capacity <> p_capacity THEN
      SET v_told = CONCAT('lockkit: limit ', v_capacity);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_told;
    END IF;
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
      CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_promoted);
      IF p_try THEN
        COMMIT;
        SELECT 0 AS outcome, NULL AS token, NULL AS held, NULL AS ahead, NULL AS ttl,
               NULL AS place, 0 AS alone, v_promoted AS promoted;
        LEAVE main;
      END IF;
      SET v_place = NULL;
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
  ELSEIF NOT v_crowd THEN
    SET v_place = GREATEST(v_last + 1, v_now DIV 1000);
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
    SET v_held = (SELECT held FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name
      ORDER BY place DESC LIMIT 1);
    IF v_held IS NOT NULL THEN
      SET v_weight = (SELECT SUM(weight) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
      SET v_held = IF(v_weight + p_weight <= p_capacity, v_now, NULL);
    END IF;
    IF v_held IS NOT NULL OR NOT p_try THEN
      SET v_place = GREATEST(v_last + 1, v_now DIV 1000), v_outcome = 1;
      INSERT INTO lockkit_claims
        (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued,
         expires, held, identity, note)
      VALUES (p_namespace, p_space, p_name, v_place, v_place, p_id, p_weight, p_capacity,
              p_hold_ttl, p_wait_ttl, v_now,
              v_now + IF(v_held IS NULL, p_wait_ttl, p_hold_ttl), v_held, p_identity, p_note);
      UPDATE lockkit_names
      SET last = v_place, next = IF(v_held IS NULL AND next = 0, v_place, next), since = v_now
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;

  IF v_outcome AND NOT v_alone THEN
    SELECT token, held, hold_ttl INTO v_token, v_held, v_ttl FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    IF v_held IS NULL THEN
      SET v_ahead = (SELECT COUNT(*) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place < v_place
          AND expires > v_now);
    END IF;
  END IF;
  COMMIT;
  SELECT v_outcome AS outcome, v_token AS token, v_held AS held, v_ahead AS ahead, v_ttl AS ttl,
         v_place AS place, v_alone AS alone, v_promoted AS promoted;
END
--;
