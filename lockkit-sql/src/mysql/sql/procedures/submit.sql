-- Carries acquires and releases of many claims in one transaction. Never waits for the row of a name: a
-- operation whose row is locked by another transaction is left out, and so is what follows of that name. (Two
-- that make the same new name at once wait for each other's commit.)
--
-- The fast operations are those whose claim is believed to be alone in its queue, or the queue to be free. Two
-- statements take them all, as fast_acquire.sql and fast_release.sql do one; or, where a single row is
-- not as believed, none, and they go the way of the rest, name by name.
-- In: held: which names the fast releases are about, as the text of a condition, with the claims' ids;
-- helds: how many they are; free: the names of the fast acquires, in the same way; frees: how many;
-- rows: their VALUES, for the columns that stand below. These texts are made of names of columns, numbers
-- and hexadecimal literals. rest: the other operations; every: all operations, both sorted by key:
--    1 what: 0 release, 1 acquire, 2 try; 5 number of the operation; 1 space; 3 length of the namespace; 3
--      length of the name; namespace; name; 16 id; and for an acquire
--    10 weight; 10 capacity; 19 hold_ttl; 19 wait_ttl; 10 length of the identity; 10 length of the note,
--      or a -; identity; note.
-- Numbers are text, of so many digits.
-- Row: fast 1: the fast operations are done; now: the token of the acquires among them; answers: of the others,
-- `number,outcome,token,ttl,ahead,look,alone,woken;` each, woken in hexadecimal digits; outcome 9: left
-- out.
CREATE PROCEDURE lockkit_submit(
  IN p_held LONGTEXT CHARACTER SET ascii, IN p_helds INT,
  IN p_free LONGTEXT CHARACTER SET ascii, IN p_frees INT, IN p_rows LONGTEXT CHARACTER SET ascii,
  IN p_rest LONGBLOB, IN p_every LONGBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_at, v_namespaces, v_names, v_identities, v_notes INT DEFAULT 1;
  DECLARE v_token, v_ttl, v_ahead, v_next_poll, v_weight, v_capacity, v_hold_ttl, v_wait_ttl BIGINT;
  DECLARE v_what, v_space, v_there, v_outcome, v_uncontended TINYINT;
  DECLARE v_namespace VARBINARY(128);
  DECLARE v_name VARBINARY(512);
  DECLARE v_id BINARY(16);
  DECLARE v_number CHAR(5) CHARACTER SET ascii;
  DECLARE v_identity, v_note BLOB;
  -- The key of the last operation that was left out.
  DECLARE v_locked VARBINARY(647) DEFAULT '';
  DECLARE v_woken BLOB;
  DECLARE v_answers LONGTEXT CHARACTER SET ascii DEFAULT '';
  {transaction}
  IF NOT @@autocommit THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'lockkit needs connections on which autocommit is on';
  END IF;
  SET @lockkit_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
      @lockkit_held = 0, @lockkit_free = 0;
  IF p_helds > 0 THEN
    SET @lockkit_text = CONCAT(
      'SELECT COUNT(*) INTO @lockkit_held FROM lockkit_names WHERE (', p_held,
      ') AND has_claim_rows = 0 AND expires > @lockkit_now FOR UPDATE SKIP LOCKED');
    PREPARE lockkit_statement FROM @lockkit_text;
    EXECUTE lockkit_statement;
  END IF;
  IF p_frees > 0 THEN
    -- Each gets the clock's microseconds as its token, which must be greater than its last one.
    SET @lockkit_text = CONCAT(
      'SELECT COUNT(*) INTO @lockkit_free FROM lockkit_names WHERE (', p_free,
      ') AND has_claim_rows = 0 AND expires <= @lockkit_now AND last BETWEEN 1 AND @lockkit_now - 1
       FOR UPDATE SKIP LOCKED');
    PREPARE lockkit_statement FROM @lockkit_text;
    EXECUTE lockkit_statement;
  END IF;
  IF @lockkit_held < p_helds OR @lockkit_free < p_frees THEN
    SET p_rest = p_every, p_helds = 0, p_frees = 0;
  END IF;
  IF p_helds > 0 THEN
    -- Safe updates want a LIMIT, or a key that the optimizer may not choose.
    SET @lockkit_text = CONCAT('UPDATE lockkit_names SET expires = 0 WHERE ', p_held,
                               ' LIMIT ', p_helds);
    PREPARE lockkit_statement FROM @lockkit_text;
    EXECUTE lockkit_statement;
  END IF;
  IF p_frees > 0 THEN
    SET @lockkit_text = CONCAT(
      'INSERT INTO lockkit_names (namespace, space, name, id, weight, capacity, hold_ttl, wait_ttl,
         identity, note, last)
       VALUES ', p_rows,
      ' ON DUPLICATE KEY UPDATE id = VALUES(id), weight = VALUES(weight),
         capacity = VALUES(capacity), hold_ttl = VALUES(hold_ttl), wait_ttl = VALUES(wait_ttl),
         identity = VALUES(identity), note = VALUES(note),
         last = @lockkit_now, since = @lockkit_now, set_at = @lockkit_now, expires = @lockkit_now + VALUES(hold_ttl)');
    PREPARE lockkit_statement FROM @lockkit_text;
    EXECUTE lockkit_statement;
  END IF;

  WHILE v_at <= LENGTH(p_rest) DO
    SET v_what = SUBSTR(p_rest, v_at, 1), v_number = SUBSTR(p_rest, v_at + 1, 5),
        v_space = SUBSTR(p_rest, v_at + 6, 1), v_namespaces = SUBSTR(p_rest, v_at + 7, 3),
        v_names = SUBSTR(p_rest, v_at + 10, 3),
        v_namespace = SUBSTR(p_rest, v_at + 13, v_namespaces),
        v_name = SUBSTR(p_rest, v_at + 13 + v_namespaces, v_names),
        v_id = SUBSTR(p_rest, v_at + 13 + v_namespaces + v_names, 16);
    SET v_there = NULL, v_outcome = NULL, v_token = NULL, v_ttl = NULL, v_ahead = NULL,
        v_next_poll = NULL, v_uncontended = NULL, v_woken = '';
    IF SUBSTR(p_rest, v_at + 6, 7 + v_namespaces + v_names) = v_locked THEN
      SET v_outcome = 9;
    ELSE
      SELECT 1 INTO v_there FROM lockkit_names
      WHERE namespace = v_namespace AND space = v_space AND name = v_name FOR UPDATE SKIP LOCKED;
      IF v_there IS NULL THEN
        -- Not a subquery of the IF, which InnoDB would read with a lock, that is, wait.
        SELECT 0 INTO v_there FROM lockkit_names
        WHERE namespace = v_namespace AND space = v_space AND name = v_name;
        IF v_there = 0 THEN
          SET v_outcome = 9, v_locked = SUBSTR(p_rest, v_at + 6, 7 + v_namespaces + v_names);
        END IF;
      END IF;
    END IF;
    SET v_at = v_at + 29 + v_namespaces + v_names;
    IF v_what > 0 THEN
      -- Variables: a statement is written out with the values that it has, before it runs.
      SET v_weight = SUBSTR(p_rest, v_at, 10), v_capacity = SUBSTR(p_rest, v_at + 10, 10),
          v_hold_ttl = SUBSTR(p_rest, v_at + 20, 19), v_wait_ttl = SUBSTR(p_rest, v_at + 39, 19),
          v_identities = SUBSTR(p_rest, v_at + 58, 10),
          v_identity = SUBSTR(p_rest, v_at + 78, v_identities), v_notes = 0, v_note = NULL;
      IF SUBSTR(p_rest, v_at + 68, 1) <> '-' THEN
        SET v_notes = SUBSTR(p_rest, v_at + 68, 10),
            v_note = SUBSTR(p_rest, v_at + 78 + v_identities, v_notes);
      END IF;
      SET v_at = v_at + 78 + v_identities + v_notes;
    END IF;
    IF v_outcome IS NULL AND v_what = 0 THEN
      CALL lockkit_dequeue(v_namespace, v_space, v_name, v_id, v_outcome, v_woken, v_uncontended);
    ELSEIF v_outcome IS NULL THEN
      CALL lockkit_enqueue(
        v_namespace, v_space, v_name, v_id, v_weight, v_capacity, v_hold_ttl, v_wait_ttl, v_identity,
        v_note, v_what = 2, v_outcome, v_token, v_ttl, v_ahead, v_next_poll, v_woken, v_uncontended);
    END IF;
    SET v_answers = CONCAT(
      v_answers, v_number, ',', v_outcome, ',', COALESCE(v_token, ''), ',', COALESCE(v_ttl, ''), ',',
      COALESCE(v_ahead, ''), ',', COALESCE(v_next_poll, ''), ',', COALESCE(v_uncontended, ''), ',',
      HEX(v_woken), ';');
  END WHILE;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT p_helds + p_frees > 0 AS fast, @lockkit_now AS now, v_answers AS answers;
END
--;
