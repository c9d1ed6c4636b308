-- One acquire: `lockkit_enqueue` as a transaction of its own.
-- Row: outcome, token, ttl, ahead, look, woken, alone, as of there.
CREATE PROCEDURE lockkit_acquire(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_weight BIGINT, IN p_capacity BIGINT, IN p_hold_ttl BIGINT, IN p_wait_ttl BIGINT,
  IN p_identity BLOB, IN p_note BLOB, IN p_try TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_outcome, v_uncontended TINYINT;
  DECLARE v_token, v_ttl, v_ahead, v_next_poll BIGINT;
  DECLARE v_woken BLOB DEFAULT '';
  {transaction}
  IF NOT @@autocommit THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'lockkit needs connections on which autocommit is on';
  END IF;
  CALL lockkit_enqueue(p_namespace, p_space, p_name, p_id, p_weight, p_capacity, p_hold_ttl, p_wait_ttl,
                   p_identity, p_note, p_try,
                   v_outcome, v_token, v_ttl, v_ahead, v_next_poll, v_woken, v_uncontended);
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_outcome AS outcome, v_token AS token, v_ttl AS ttl, v_ahead AS ahead, v_next_poll AS next_poll,
         v_woken AS woken, v_uncontended AS uncontended;
END
--;
