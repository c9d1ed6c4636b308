-- Removes what is not needed any more, some names at a time: names unused for long, claims of queues that
-- are not used, old records of breaks, fences without a claim, registers that are gone. (A queue that was
-- given a limit, and is empty, has `has_claim_rows` 1 and `ends` 0: it stays.) Waits for no row of a name or a fence.
-- In: namespace, space, name: where the last bite ended; bite: how many names to look at; idle:
-- after how long an unused name goes.
-- Row: namespace, space, name: where this bite ended (NULL: at the end of the table).
CREATE PROCEDURE lockkit_sweep(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_bite INT, IN p_idle BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_last, v_top BIGINT DEFAULT 0;
  DECLARE v_namespace VARBINARY(128);
  DECLARE v_space, v_has_claim_rows TINYINT;
  DECLARE v_name VARBINARY(512);
  DECLARE v_seen INT DEFAULT 0;
  DECLARE v_n BIGINT;
  DECLARE v_id, v_free, v_used BINARY(16);
  DECLARE v_done TINYINT DEFAULT 0;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE v_bite CURSOR FOR
    SELECT namespace, space, name,
           IF(has_claim_rows, ends BETWEEN 1 AND v_now, expires <= v_now AND since <= v_now - p_idle), has_claim_rows
    FROM lockkit_names
    WHERE namespace > p_namespace
       OR (namespace = p_namespace AND space > p_space)
       OR (namespace = p_namespace AND space = p_space AND name > p_name)
    ORDER BY namespace, space, name LIMIT p_bite;
  -- What can go is found by reads without locks: a DELETE with a condition on another table would wait for
  -- rows of that table.
  DECLARE v_records CURSOR FOR
    SELECT b.n FROM lockkit_breaks AS b
    WHERE b.expires <= v_now
      AND NOT EXISTS (SELECT 1 FROM lockkit_names AS l
                      WHERE l.namespace = b.namespace AND l.space = b.space
                        AND l.name = b.name AND (l.has_claim_rows OR l.expires > v_now))
    LIMIT 256;
  DECLARE v_orphans CURSOR FOR
    SELECT f.id FROM lockkit_fences AS f
    WHERE NOT EXISTS (SELECT 1 FROM lockkit_claims AS c WHERE c.id = f.id)
    LIMIT 256;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  {transaction}
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  OPEN v_bite;
  bite: LOOP
    FETCH v_bite INTO v_namespace, v_space, v_name, v_last, v_has_claim_rows;
    IF v_done THEN
      LEAVE bite;
    END IF;
    SET v_seen = v_seen + 1;
    IF v_last THEN
      -- A row that another transaction has locked is in use.
      SET v_last = NULL;
      SELECT last, has_claim_rows INTO v_last, v_has_claim_rows FROM lockkit_names
      WHERE namespace = v_namespace AND space = v_space AND name = v_name
        AND IF(has_claim_rows, ends BETWEEN 1 AND v_now, expires <= v_now AND since <= v_now - p_idle)
      FOR UPDATE SKIP LOCKED;
      IF v_last IS NOT NULL AND v_has_claim_rows THEN
        CALL lockkit_promote(v_namespace, v_space, v_name, v_now, v_woken);
      ELSEIF v_last IS NOT NULL THEN
        SET v_top = GREATEST(v_top, v_last);
        DELETE FROM lockkit_names
        WHERE namespace = v_namespace AND space = v_space AND name = v_name;
      END IF;
      SET v_done = 0;
    END IF;
  END LOOP;
  CLOSE v_bite;

  SELECT GREATEST(v_top, COALESCE(MAX(version), 0)) INTO v_top FROM lockkit_registers
  WHERE purge_at <= v_now AND highest IS NULL;
  UPDATE lockkit_meta SET floor = v_top WHERE one = 1 AND floor < v_top;
  DELETE FROM lockkit_registers
  WHERE purge_at <= v_now AND highest IS NULL AND version <= v_top LIMIT 256;
  UPDATE lockkit_registers SET value = NULL, expires = NULL, purge_at = NULL
  WHERE purge_at <= v_now AND highest IS NOT NULL LIMIT 256;

  SET v_done = 0;
  OPEN v_records;
  records: LOOP
    FETCH v_records INTO v_n;
    IF v_done THEN
      LEAVE records;
    END IF;
    DELETE FROM lockkit_breaks WHERE n = v_n;
  END LOOP;
  CLOSE v_records;

  SET v_done = 0;
  OPEN v_orphans;
  orphans: LOOP
    FETCH v_orphans INTO v_id;
    IF v_done THEN
      LEAVE orphans;
    END IF;
    -- Where a transaction relies on it, or makes it a fence just now, it is locked.
    SET v_free = NULL, v_used = NULL;
    SELECT id INTO v_free FROM lockkit_fences WHERE id = v_id FOR UPDATE SKIP LOCKED;
    SELECT id INTO v_used FROM lockkit_claims WHERE id = v_id LIMIT 1;
    IF v_free IS NOT NULL AND v_used IS NULL THEN
      DELETE FROM lockkit_fences WHERE id = v_id;
    END IF;
    SET v_done = 0;
  END LOOP;
  CLOSE v_orphans;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT IF(v_seen < p_bite, NULL, v_namespace) AS namespace, v_space AS space, v_name AS name;
END
--;
