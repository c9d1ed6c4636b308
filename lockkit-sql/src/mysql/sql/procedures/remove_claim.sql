-- Takes one claim out of its queue, whose name's row the caller has locked.
-- A fenced claim stays, ended, for as long as a transaction of its owner relies on it; the lock
-- moves on with the next look after that. Without a row in lockkit_fences no transaction can: an
-- administrator may have removed it.
CREATE PROCEDURE lockkit_remove_claim(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_sequence BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_fenced TINYINT DEFAULT 0;
  DECLARE v_id, v_free, v_kept BINARY(16) DEFAULT NULL;
  SELECT fenced, id INTO v_fenced, v_id FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = p_sequence;
  IF v_fenced THEN
    SELECT id INTO v_free FROM lockkit_fences WHERE id = v_id FOR UPDATE SKIP LOCKED;
    IF v_free IS NULL THEN
      -- Locked, or not there: a read without a lock tells which. A row that a fence has inserted and not
      -- committed is not there: that fence finds no claim.
      SELECT id INTO v_kept FROM lockkit_fences WHERE id = v_id;
    END IF;
  END IF;
  IF v_kept IS NOT NULL THEN
    UPDATE lockkit_claims SET expires = 0
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = p_sequence;
  ELSE
    IF v_free IS NOT NULL THEN
      DELETE FROM lockkit_fences WHERE id = v_id;
    END IF;
    DELETE FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND sequence = p_sequence;
  END IF;
END
--;
