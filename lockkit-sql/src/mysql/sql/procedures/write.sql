-- Writes or deletes a register.
-- In: value (NULL: delete); expect (0 anything, 1 absent, 2 version); version; token; write_id; ttl;
-- grace: for how long a deletion is remembered; repeated: 1 when an earlier attempt of this write may have
-- been applied.
-- Row: outcome 1 stored (number: the version), 2 stale (number: the highest token), 0 conflict.
--
-- The rule is that of `WriteResult::decide`. Version 0 stands for a row that was never written.
--
-- Versions begin at the clock's microseconds, so they grow although the row of a register without a
-- token is removed after a while; should the clock be behind, lockkit_meta remembers.
CREATE PROCEDURE lockkit_write(
  IN p_namespace VARBINARY(128), IN p_name VARBINARY(512), IN p_value MEDIUMBLOB,
  IN p_expect TINYINT, IN p_version BIGINT, IN p_token BIGINT, IN p_write_id BINARY(16),
  IN p_ttl BIGINT, IN p_grace BIGINT, IN p_repeated TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_version, v_highest, v_number BIGINT DEFAULT NULL;
  DECLARE v_there, v_same, v_back TINYINT DEFAULT 0;
  DECLARE v_outcome TINYINT DEFAULT 9;
  {transaction}
  INSERT INTO lockkit_registers (namespace, name, version, write_id) VALUES
    (p_namespace, p_name, 0, '')
  ON DUPLICATE KEY UPDATE version = version;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SELECT version, highest, version > 0 AND write_id = p_write_id,
         value IS NOT NULL AND (expires IS NULL OR expires > v_now), set_at > v_now
  INTO v_version, v_highest, v_same, v_there, v_back
  FROM lockkit_registers WHERE namespace = p_namespace AND name = p_name FOR UPDATE;
  IF v_same THEN
    SET v_outcome = 1, v_number = v_version;
  ELSEIF p_token < v_highest THEN
    SET v_outcome = 2, v_number = v_highest;
  ELSEIF (p_expect = 1 AND v_there) OR (p_expect = 2 AND NOT (v_there AND v_version = p_version))
  THEN
    SET v_outcome = 0;
  ELSEIF p_repeated AND v_version > 0 AND (p_expect = 1 OR (p_expect = 0 AND p_token IS NOT NULL))
    AND NOT COALESCE(p_token > COALESCE(v_highest, 0), 0)
  THEN
    -- An earlier attempt may have been applied and overwritten.
    SET v_outcome = 0;
  END IF;
  IF v_outcome = 9 THEN
    IF v_version = 0 THEN
      SELECT floor INTO v_version FROM lockkit_meta WHERE one = 1;
    END IF;
    SET v_outcome = 1, v_number = GREATEST(v_version + 1, v_now);
    UPDATE lockkit_registers
    SET value = p_value, version = v_number, write_id = p_write_id,
        set_at = v_now, expires = v_now + p_ttl,
        purge_at = CASE WHEN COALESCE(p_token, v_highest) IS NOT NULL AND p_value IS NULL THEN NULL
                        WHEN p_value IS NULL THEN v_now + p_grace
                        ELSE v_now + p_ttl + p_grace END,
        highest = COALESCE(p_token, v_highest)
    WHERE namespace = p_namespace AND name = p_name;
    COMMIT AND NO CHAIN NO RELEASE;
  ELSEIF v_back THEN
    UPDATE lockkit_registers
    SET expires = expires - set_at + v_now, purge_at = purge_at - set_at + v_now, set_at = v_now
    WHERE namespace = p_namespace AND name = p_name;
    COMMIT AND NO CHAIN NO RELEASE;
  ELSE
    ROLLBACK AND NO CHAIN NO RELEASE;
  END IF;
  SELECT v_outcome AS outcome, v_number AS number;
END
--;
