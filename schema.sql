DELIMITER --;
-- The tables, version 4: those of version 2. Each statement ends with a line of two hyphens and a semicolon.
-- Parameters: none; `lockkit_` is replaced by the prefix of choice.
-- Times are microseconds since 1970 on the server's clock, in UTC.

-- One row for a set of tables.
CREATE TABLE IF NOT EXISTS lockkit_meta (
  one     TINYINT NOT NULL PRIMARY KEY,
  version INT     NOT NULL, -- of this schema
  floor   BIGINT  NOT NULL  -- no name that has no row yet gets a token up to it
) ENGINE=InnoDB

--;

-- One row a name: its lock is taken before anything of the name is looked at.
--
-- The only claim of a list stands in this row itself (`id`), so that a lock that nobody else wants
-- costs one row for the acquire and the same row for the release. As soon as there are two, all
-- are rows of lockkit_claims, and `crowd` is 1 until the last of them has left; for good where the list
-- was given a limit.
--
-- Who leaves makes `expires` 0 and nothing else. So a row without a claim still has what the last one
-- wrote, its id too: what counts is `expires`, never whether there is an id.
CREATE TABLE IF NOT EXISTS lockkit_names (
  namespace VARBINARY(128) NOT NULL,
  space     TINYINT        NOT NULL,           -- 0 lock, 1 semaphore
  name      VARBINARY(512) NOT NULL,
  last      BIGINT         NOT NULL,           -- the greatest token given; that of the claim here
  crowd     TINYINT        NOT NULL DEFAULT 0, -- the list is in lockkit_claims
  next      BIGINT         NOT NULL DEFAULT 0, -- the place of its first waiter; 0: nobody waits
  ends      BIGINT         NOT NULL DEFAULT 0, -- when its first are to be looked at again
  id        BINARY(16),                        -- of the claim here, or of the last one
  weight    BIGINT         NOT NULL DEFAULT 0,
  capacity  BIGINT         NOT NULL DEFAULT 0,
  hold_ttl  BIGINT         NOT NULL DEFAULT 0,
  wait_ttl  BIGINT         NOT NULL DEFAULT 0,
  since     BIGINT         NOT NULL DEFAULT 0, -- when the name was used last: the claim here holds since
  expires   BIGINT         NOT NULL DEFAULT 0, -- of the claim here
  identity  BLOB,                              -- JSON
  note      BLOB,
  PRIMARY KEY (namespace, space, name)
) ENGINE=InnoDB

--;

-- One row a claim of a list that has had two at a time, in the order of the list.
CREATE TABLE IF NOT EXISTS lockkit_claims (
  namespace VARBINARY(128) NOT NULL,
  space     TINYINT        NOT NULL,
  name      VARBINARY(512) NOT NULL,
  place     BIGINT         NOT NULL,           -- the order
  token     BIGINT         NOT NULL,           -- the place, unless raised
  id        BINARY(16)     NOT NULL,
  weight    BIGINT         NOT NULL,
  capacity  BIGINT         NOT NULL,
  hold_ttl  BIGINT         NOT NULL,
  wait_ttl  BIGINT         NOT NULL,
  queued    BIGINT         NOT NULL,           -- since when it is in line
  expires   BIGINT         NOT NULL,
  held      BIGINT,                            -- since when it holds; NULL while it waits
  broken    TINYINT        NOT NULL DEFAULT 0,
  fenced    TINYINT        NOT NULL DEFAULT 0, -- has a row in lockkit_fences
  identity  BLOB,
  note      BLOB,
  PRIMARY KEY (namespace, space, name, place),
  KEY lockkit_by_id (id)
) ENGINE=InnoDB

--;

-- The limits that semaphores were given, for good. (New in version 2; the other tables are those of
-- version 1.)
CREATE TABLE IF NOT EXISTS lockkit_limits (
  namespace VARBINARY(128) NOT NULL,
  space     TINYINT        NOT NULL,
  name      VARBINARY(512) NOT NULL,
  capacity  BIGINT         NOT NULL,
  PRIMARY KEY (namespace, space, name)
) ENGINE=InnoDB

--;

-- A claim that transactions of its owner's rely on: they lock its row here for sharing, and who
-- takes the claim out of its list deletes this row first, or leaves the claim where it is.
CREATE TABLE IF NOT EXISTS lockkit_fences (
  id BINARY(16) NOT NULL PRIMARY KEY
) ENGINE=InnoDB

--;

-- Who broke which claim; kept until its owner must know by himself.
CREATE TABLE IF NOT EXISTS lockkit_breaks (
  n         BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
  namespace VARBINARY(128) NOT NULL,
  space     TINYINT        NOT NULL,
  name      VARBINARY(512) NOT NULL,
  id        BINARY(16)     NOT NULL,
  record    BLOB           NOT NULL, -- JSON
  expires   BIGINT         NOT NULL,
  KEY lockkit_breaks_by_list (namespace, space, name, n),
  KEY lockkit_breaks_by_id (id)
) ENGINE=InnoDB

--;

CREATE TABLE IF NOT EXISTS lockkit_registers (
  namespace VARBINARY(128) NOT NULL,
  name      VARBINARY(512) NOT NULL,
  value     MEDIUMBLOB,              -- NULL: there is none
  version   BIGINT         NOT NULL,
  highest   BIGINT,                  -- the highest token of any write
  write_id  BINARY(16)     NOT NULL, -- of the last write that was applied
  expires   BIGINT,
  purge_at  BIGINT,                  -- when a row without a value and without a token may go
  PRIMARY KEY (namespace, name),
  KEY lockkit_registers_to_purge (purge_at)
) ENGINE=InnoDB

--;

CREATE TABLE IF NOT EXISTS lockkit_bases (
  namespace VARBINARY(128) NOT NULL PRIMARY KEY,
  base      BIGINT         NOT NULL
) ENGINE=InnoDB

--;

-- For people: who holds, who waits, for how many more seconds without a renewal.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW lockkit_line AS
SELECT CONVERT(namespace USING utf8mb4) AS namespace,
       IF(space = 0, 'lock', 'semaphore') AS space, CONVERT(name USING utf8mb4) AS name,
       token, IF(held IS NULL, 'waits', 'holds') AS state,
       CASE WHEN space = 1 THEN 'permits' WHEN weight = capacity THEN 'exclusive' ELSE 'shared' END
         AS mode,
       weight, capacity,
       (expires - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) / 1000000
         AS left_s,
       CONVERT(identity USING utf8mb4) AS identity, CONVERT(note USING utf8mb4) AS note
FROM (
  SELECT namespace, space, name, place, token, weight, capacity, expires, held, identity, note
  FROM lockkit_claims
  UNION ALL
  SELECT namespace, space, name, last, last, weight, capacity, expires, since, identity, note
  FROM lockkit_names WHERE id IS NOT NULL
) AS everybody
WHERE expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY namespace, space, name, place

--;

-- Of what follows, nothing is there yet.
INSERT INTO lockkit_meta (one, version, floor) VALUES (1, 0, 0)
ON DUPLICATE KEY UPDATE version = version

--;
-- Locks the name's row and makes its list one of lockkit_claims, so that a verb has one place to
-- look at. Inside a transaction of the caller's.
-- Out: now, read after the row was locked (every statement of a procedure has a time of its own),
-- so that a wait for the row does not make it old; there: 0 when the name has no row.
CREATE OR REPLACE PROCEDURE lockkit_enter(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  OUT p_now BIGINT, OUT p_there TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_crowd TINYINT DEFAULT NULL;
  DECLARE v_id BINARY(16) DEFAULT NULL;
  SELECT crowd, id INTO v_crowd, v_id FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET p_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET p_there = v_crowd IS NOT NULL;
  IF v_id IS NOT NULL THEN
    INSERT INTO lockkit_claims
      (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued,
       expires, held, identity, note)
    SELECT namespace, space, name, last, last, id, weight, capacity, hold_ttl, wait_ttl, since,
           expires, since, identity, note
    FROM lockkit_names WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    UPDATE lockkit_names SET id = NULL, crowd = 1, next = 0, ends = expires, expires = 0
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  END IF;
END

--;
-- Takes one claim out of its list, whose name's row the caller has locked.
-- A fenced claim stays, ended, for as long as a transaction of its owner's relies on it; the lock
-- moves on with the next look after that.
CREATE OR REPLACE PROCEDURE lockkit_leave(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_place BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_fenced TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16);
  DECLARE v_free BINARY(16) DEFAULT NULL;
  SELECT fenced, id INTO v_fenced, v_id FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = p_place;
  IF v_fenced THEN
    SELECT id INTO v_free FROM lockkit_fences WHERE id = v_id FOR UPDATE SKIP LOCKED;
  END IF;
  IF v_fenced AND v_free IS NULL THEN
    UPDATE lockkit_claims SET expires = 0
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = p_place;
  ELSE
    IF v_fenced THEN
      DELETE FROM lockkit_fences WHERE id = v_id;
    END IF;
    DELETE FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = p_place;
  END IF;
END

--;
-- Lets a list of lockkit_claims move on: removes the holders that have ended, then walks along the
-- first waiters, removing the ended ones and making holders of those who fit, up to the first that
-- must wait. Inside a transaction that has locked the name's row. A limit that the list was given is
-- what counts, whatever a claim says that was put in by a procedure of version 1 which was running while
-- they were replaced.
-- InOut: woken: the tags of the new holders, 8 bytes each, appended (as many as fit): what stands for
-- a claim where others can see it, made of its id, and no way back.
--
-- Costs one look at each holder and some statements for each claim that leaves or begins to hold;
-- those behind are not looked at.
CREATE OR REPLACE PROCEDURE lockkit_settle(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_now BIGINT, INOUT p_woken BLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_first, v_place, v_weight, v_capacity, v_expires, v_ends BIGINT DEFAULT NULL;
  DECLARE v_given BIGINT DEFAULT NULL;
  DECLARE v_used BIGINT DEFAULT 0;
  DECLARE v_holders INT DEFAULT 0;
  DECLARE v_id BINARY(16);

  IF p_space = 1 THEN
    SET v_given = (SELECT capacity FROM lockkit_limits
      WHERE namespace = p_namespace AND space = p_space AND name = p_name);
  END IF;
  SET v_first = (SELECT place FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND held IS NULL
    ORDER BY place LIMIT 1);

  gone: LOOP
    SET v_place = (SELECT place FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name
        AND place < COALESCE(v_first, 9223372036854775807) AND expires <= p_now
        AND place > COALESCE(v_place, 0)
      ORDER BY place LIMIT 1);
    IF v_place IS NULL THEN
      LEAVE gone;
    END IF;
    CALL lockkit_leave(p_namespace, p_space, p_name, v_place);
  END LOOP;

  SELECT COALESCE(SUM(weight), 0), COUNT(*),
         MIN(IF(expires <= p_now, p_now + 100000, expires))
  INTO v_used, v_holders, v_ends
  FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name
    AND place < COALESCE(v_first, 9223372036854775807);

  walk: WHILE v_first IS NOT NULL DO
    SELECT id, weight, capacity, expires INTO v_id, v_weight, v_capacity, v_expires
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_first;
    IF v_expires <= p_now THEN
      DELETE FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_first;
    ELSEIF v_used + v_weight <= COALESCE(v_given, v_capacity) THEN
      UPDATE lockkit_claims
      SET held = p_now, expires = IF(broken, expires, GREATEST(expires, p_now + hold_ttl))
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_first;
      SET v_used = v_used + v_weight, v_holders = v_holders + 1;
      SET v_ends = (SELECT LEAST(COALESCE(v_ends, expires), expires) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_first);
      IF LENGTH(p_woken) < 8000 THEN
        SET p_woken = CONCAT(p_woken, UNHEX(LEFT(SHA2(v_id, 256), 16)));
      END IF;
    ELSE
      SET v_ends = LEAST(COALESCE(v_ends, v_expires), v_expires);
      LEAVE walk;
    END IF;
    SET v_first = (SELECT place FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place > v_first
      ORDER BY place LIMIT 1);
  END WHILE;

  UPDATE lockkit_names
  SET crowd = v_first IS NOT NULL OR v_holders > 0 OR v_given IS NOT NULL,
      next = COALESCE(v_first, 0),
      ends = COALESCE(v_ends, 0), since = p_now
  WHERE namespace = p_namespace AND space = p_space AND name = p_name;
END

--;
-- Puts a claim at the end of its list, inside a transaction of the caller's.
-- In: as the columns; try: 1: leave at once if it cannot hold.
-- Out: outcome 0 busy, 1 holds, 2 waits, 3 another limit; token, or the limit in use; ttl; ahead; look:
-- until somebody ahead ends; alone: 1 when it stands in the name's own row. InOut: woken.
CREATE OR REPLACE PROCEDURE lockkit_put(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_weight BIGINT, IN p_capacity BIGINT, IN p_hold_ttl BIGINT, IN p_wait_ttl BIGINT,
  IN p_identity BLOB, IN p_note BLOB, IN p_try TINYINT,
  OUT p_outcome TINYINT, OUT p_token BIGINT, OUT p_ttl BIGINT, OUT p_ahead BIGINT,
  OUT p_look BIGINT, INOUT p_woken BLOB, OUT p_alone TINYINT)
SQL SECURITY INVOKER
main: BEGIN
  DECLARE v_now, v_last, v_expires, v_held, v_place, v_weight, v_capacity, v_given BIGINT
    DEFAULT NULL;
  DECLARE v_crowd, v_there, v_broken TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16) DEFAULT NULL;

  SET p_outcome = 0, p_ahead = 0, p_alone = 0;
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
      SET p_outcome = 3, p_token = v_capacity;
      LEAVE main;
    END IF;
    IF v_id = p_id THEN
      -- What is in line already stays where it is.
      UPDATE lockkit_names SET expires = GREATEST(expires, v_now + hold_ttl)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET p_ttl = (SELECT hold_ttl FROM lockkit_names
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
      SET p_outcome = 1, p_token = v_last, p_alone = 1;
      LEAVE main;
    END IF;
    IF p_try AND v_weight + p_weight > v_capacity THEN
      LEAVE main;
    END IF;
    CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
    SET v_crowd = 1;
  END IF;

  IF v_crowd THEN
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, p_woken);
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
      CALL lockkit_settle(p_namespace, p_space, p_name, v_now, p_woken);
      IF p_try THEN
        LEAVE main;
      END IF;
      SET v_place = NULL;
    END IF;
    -- What is in line is known by its id, whatever limit it was made with.
    IF v_place IS NULL AND v_capacity <> p_capacity THEN
      SET p_outcome = 3, p_token = v_capacity;
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
    SET p_outcome = 1;
  ELSEIF NOT v_crowd AND p_weight <= p_capacity THEN
    SET v_place = GREATEST(v_last + 1, v_now);
    UPDATE lockkit_names
    SET last = v_place, id = p_id, weight = p_weight, capacity = p_capacity,
        hold_ttl = p_hold_ttl, wait_ttl = p_wait_ttl, since = v_now, expires = v_now + p_hold_ttl,
        identity = p_identity, note = p_note
    WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    SET p_outcome = 1, p_alone = 1, p_token = v_place, p_ttl = p_hold_ttl;
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
      SET v_place = GREATEST(v_last + 1, v_now), p_outcome = 1;
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

  IF p_outcome AND NOT p_alone THEN
    SELECT IF(held IS NULL, 2, 1), token, hold_ttl INTO p_outcome, p_token, p_ttl
    FROM lockkit_claims
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    IF p_outcome = 2 THEN
      SET p_ahead = (SELECT COUNT(*) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place < v_place);
      SET p_look = (SELECT GREATEST(1, ends - v_now)
        FROM lockkit_names
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
    END IF;
  END IF;
END

--;
-- One acquire: `lockkit_put` as a transaction of its own.
-- Row: outcome, token, ttl, ahead, look, woken, alone, as of there.
CREATE OR REPLACE PROCEDURE lockkit_acquire(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_weight BIGINT, IN p_capacity BIGINT, IN p_hold_ttl BIGINT, IN p_wait_ttl BIGINT,
  IN p_identity BLOB, IN p_note BLOB, IN p_try TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_outcome, v_alone TINYINT;
  DECLARE v_token, v_ttl, v_ahead, v_look BIGINT;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF NOT @@autocommit THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'lockkit needs connections on which autocommit is on';
  END IF;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lockkit_put(p_namespace, p_space, p_name, p_id, p_weight, p_capacity, p_hold_ttl, p_wait_ttl,
                   p_identity, p_note, p_try,
                   v_outcome, v_token, v_ttl, v_ahead, v_look, v_woken, v_alone);
  COMMIT;
  SELECT v_outcome AS outcome, v_token AS token, v_ttl AS ttl, v_ahead AS ahead, v_look AS look,
         v_woken AS woken, v_alone AS alone;
END

--;
-- Takes a claim out of its list, inside a transaction of the caller's.
-- Out: outcome 1 it was there (and had not ended), 2 it was not, others are, 3 nobody is; alone: 0 when
-- others are in the list, or it has a limit. InOut: woken.
CREATE OR REPLACE PROCEDURE lockkit_remove(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  OUT p_outcome TINYINT, INOUT p_woken BLOB, OUT p_alone TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_place BIGINT DEFAULT NULL;
  DECLARE v_crowd TINYINT DEFAULT NULL;
  DECLARE v_id BINARY(16) DEFAULT NULL;

  SET p_outcome = 3;
  SELECT crowd, id, expires INTO v_crowd, v_id, v_expires FROM lockkit_names
  WHERE namespace = p_namespace AND space = p_space AND name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_crowd = 0 THEN
    IF v_id = p_id THEN
      -- The id stays: see swift_release.sql.
      UPDATE lockkit_names SET expires = 0
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
      SET p_outcome = IF(v_expires > v_now, 1, 3);
    ELSEIF v_id IS NOT NULL AND v_expires > v_now THEN
      SET p_outcome = 2;
    END IF;
  ELSEIF v_crowd THEN
    SELECT place, expires INTO v_place, v_expires FROM lockkit_claims
    WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
    IF v_place IS NOT NULL THEN
      CALL lockkit_leave(p_namespace, p_space, p_name, v_place);
    END IF;
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, p_woken);
    SET v_crowd = (SELECT crowd FROM lockkit_names
      WHERE namespace = p_namespace AND space = p_space AND name = p_name);
    SET p_outcome = CASE WHEN v_place IS NOT NULL AND v_expires > v_now THEN 1
                         WHEN v_crowd AND EXISTS (
                           SELECT 1 FROM lockkit_claims
                           WHERE namespace = p_namespace AND space = p_space AND name = p_name)
                         THEN 2 ELSE 3 END;
  END IF;
  SET p_alone = COALESCE(v_crowd, 0) = 0;
END

--;
-- One release: `lockkit_remove` as a transaction of its own.
-- Row: outcome, as of there; woken; crowd: 1 when others are in the list, or it has a limit.
CREATE OR REPLACE PROCEDURE lockkit_release(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_outcome, v_alone TINYINT;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lockkit_remove(p_namespace, p_space, p_name, p_id, v_outcome, v_woken, v_alone);
  COMMIT;
  SELECT v_outcome AS outcome, v_woken AS woken, NOT v_alone AS crowd;
END

--;
-- Carries acquires and releases of many claims in one transaction. Never waits for the row of a name: a
-- step whose row is locked by another transaction is left out, and so is what follows of that name. (Two
-- that make the same new name at once wait for each other's commit.)
--
-- The swift steps are those whose claim is believed to be alone in its list, or the list to be free. Two
-- statements take them all, as swift_acquire.sql and swift_release.sql do one; or, where a single row is
-- not as believed, none, and they go the way of the rest, name by name.
-- In: held: which names the swift releases are about, as the text of a condition, with the claims' ids;
-- helds: how many they are; free: the names of the swift acquires, in the same way; frees: how many;
-- rows: their VALUES, for the columns that stand below. These texts are made of names of columns, numbers
-- and hexadecimal literals. rest: the other steps; every: all steps, both sorted by key, step after step:
--    1 what: 0 release, 1 acquire, 2 try; 5 number of the step; 1 space; 3 length of the namespace; 3
--      length of the name; namespace; name; 16 id; and for an acquire
--    10 weight; 10 capacity; 19 hold_ttl; 19 wait_ttl; 10 length of the identity; 10 length of the note,
--      or a -; identity; note.
-- Numbers are text, of so many digits.
-- Row: swift 1: the swift steps are done; now: the token of the acquires among them; told: of the others,
-- `number,outcome,token,ttl,ahead,look,alone,woken;` each, woken in hexadecimal digits; outcome 9: left
-- out.
CREATE OR REPLACE PROCEDURE lockkit_carry(
  IN p_held LONGTEXT CHARACTER SET ascii, IN p_helds INT,
  IN p_free LONGTEXT CHARACTER SET ascii, IN p_frees INT, IN p_rows LONGTEXT CHARACTER SET ascii,
  IN p_rest LONGBLOB, IN p_every LONGBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_at, v_namespaces, v_names, v_identities, v_notes INT DEFAULT 1;
  DECLARE v_token, v_ttl, v_ahead, v_look, v_weight, v_capacity, v_hold_ttl, v_wait_ttl BIGINT;
  DECLARE v_what, v_space, v_there, v_outcome, v_alone TINYINT;
  DECLARE v_namespace VARBINARY(128);
  DECLARE v_name VARBINARY(512);
  DECLARE v_id BINARY(16);
  DECLARE v_number CHAR(5) CHARACTER SET ascii;
  DECLARE v_identity, v_note BLOB;
  -- The key of the last step that was left out.
  DECLARE v_locked VARBINARY(647) DEFAULT '';
  DECLARE v_woken BLOB;
  DECLARE v_told LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF NOT @@autocommit THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'lockkit needs connections on which autocommit is on';
  END IF;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SET @lockkit_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
      @lockkit_held = 0, @lockkit_free = 0;
  IF p_helds > 0 THEN
    SET @lockkit_text = CONCAT(
      'SELECT COUNT(*) INTO @lockkit_held FROM lockkit_names WHERE (', p_held,
      ') AND crowd = 0 AND expires > @lockkit_now FOR UPDATE SKIP LOCKED');
    PREPARE lockkit_statement FROM @lockkit_text;
    EXECUTE lockkit_statement;
  END IF;
  IF p_frees > 0 THEN
    -- Each gets the clock's microseconds as its token, which must be greater than its last one.
    SET @lockkit_text = CONCAT(
      'SELECT COUNT(*) INTO @lockkit_free FROM lockkit_names WHERE (', p_free,
      ') AND crowd = 0 AND expires <= @lockkit_now AND last BETWEEN 1 AND @lockkit_now - 1
       FOR UPDATE SKIP LOCKED');
    PREPARE lockkit_statement FROM @lockkit_text;
    EXECUTE lockkit_statement;
  END IF;
  IF @lockkit_held < p_helds OR @lockkit_free < p_frees THEN
    SET p_rest = p_every, p_helds = 0, p_frees = 0;
  END IF;
  IF p_helds > 0 THEN
    SET @lockkit_text = CONCAT('UPDATE lockkit_names SET expires = 0 WHERE ', p_held);
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
         last = @lockkit_now, since = @lockkit_now, expires = @lockkit_now + VALUES(hold_ttl)');
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
        v_look = NULL, v_alone = NULL, v_woken = '';
    IF SUBSTR(p_rest, v_at + 6, 7 + v_namespaces + v_names) = v_locked THEN
      SET v_outcome = 9;
    ELSE
      SELECT 1 INTO v_there FROM lockkit_names
      WHERE namespace = v_namespace AND space = v_space AND name = v_name FOR UPDATE SKIP LOCKED;
      IF v_there IS NULL AND EXISTS (
        SELECT 1 FROM lockkit_names
        WHERE namespace = v_namespace AND space = v_space AND name = v_name)
      THEN
        SET v_outcome = 9, v_locked = SUBSTR(p_rest, v_at + 6, 7 + v_namespaces + v_names);
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
      CALL lockkit_remove(v_namespace, v_space, v_name, v_id, v_outcome, v_woken, v_alone);
    ELSEIF v_outcome IS NULL THEN
      CALL lockkit_put(
        v_namespace, v_space, v_name, v_id, v_weight, v_capacity, v_hold_ttl, v_wait_ttl, v_identity,
        v_note, v_what = 2, v_outcome, v_token, v_ttl, v_ahead, v_look, v_woken, v_alone);
    END IF;
    SET v_told = CONCAT(
      v_told, v_number, ',', v_outcome, ',', COALESCE(v_token, ''), ',', COALESCE(v_ttl, ''), ',',
      COALESCE(v_ahead, ''), ',', COALESCE(v_look, ''), ',', COALESCE(v_alone, ''), ',',
      HEX(v_woken), ';');
  END WHILE;
  COMMIT;
  SELECT p_helds + p_frees > 0 AS swift, @lockkit_now AS now, v_told AS told;
END

--;
-- Renews many claims at once.
-- In: claims: a JSON array of [id, hold_ttl, wait_ttl, namespace, space, name], texts in hexadecimal
-- digits, in the order of their lists: rows are locked in this order by everybody, so that two
-- renewals never wait for each other.
-- Rows: n (from 0); state 1 it holds, 2 it waits, 3 it was broken or is not there; token; ttl;
-- ahead; look: until somebody ahead ends; record: how it was broken; woken: on the first row.
CREATE OR REPLACE PROCEDURE lockkit_renew(IN p_claims LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  DECLARE v_namespace VARBINARY(128);
  DECLARE v_space TINYINT;
  DECLARE v_name VARBINARY(512);
  DECLARE v_done TINYINT DEFAULT 0;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE v_lists CURSOR FOR
    SELECT DISTINCT l.namespace, l.space, l.name
    FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]')) AS j
    STRAIGHT_JOIN lockkit_names AS l
      ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
    WHERE l.crowd;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  -- Locks the rows: MySQL has no FOR UPDATE beside a JSON_TABLE.
  UPDATE JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]')) AS j
  STRAIGHT_JOIN lockkit_names AS l
    ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
  SET l.crowd = l.crowd;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

  -- Those that stand in their name's own row. Who is told that it has ended is taken out.
  UPDATE JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]')) AS j
  STRAIGHT_JOIN lockkit_names AS l
    ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
   AND l.id = UNHEX(j.id)
  SET l.id = IF(l.expires > v_now, l.id, NULL),
      l.expires = IF(l.expires > v_now, GREATEST(l.expires, v_now + j.hold_ttl), 0),
      l.hold_ttl = j.hold_ttl, l.wait_ttl = j.wait_ttl;

  -- The others.
  SET v_done = 0;
  OPEN v_lists;
  lists: LOOP
    FETCH v_lists INTO v_namespace, v_space, v_name;
    IF v_done THEN
      LEAVE lists;
    END IF;
    CALL lockkit_settle(v_namespace, v_space, v_name, v_now, v_woken);
    SET v_done = 0;
  END LOOP;
  CLOSE v_lists;
  -- A waiter that has ended behind others, where settling does not look.
  DELETE c FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]')) AS j
  STRAIGHT_JOIN lockkit_claims AS c
    ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
   AND c.name = UNHEX(j.name)
  WHERE c.expires <= v_now AND c.held IS NULL;
  UPDATE JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]')) AS j
  STRAIGHT_JOIN lockkit_claims AS c
    ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
   AND c.name = UNHEX(j.name)
  SET c.expires = GREATEST(c.expires, v_now + IF(c.held IS NULL, j.wait_ttl, j.hold_ttl)),
      c.hold_ttl = j.hold_ttl, c.wait_ttl = j.wait_ttl
  WHERE NOT c.broken AND c.expires > v_now;

  SELECT j.n - 1 AS n,
         CASE WHEN (c.token IS NULL AND l.last IS NULL) OR c.broken THEN 3
              WHEN c.token IS NOT NULL AND c.held IS NULL THEN 2 ELSE 1 END AS state,
         COALESCE(c.token, l.last) AS token, COALESCE(c.hold_ttl, l.hold_ttl) AS ttl,
         IF(c.token IS NULL OR c.held IS NOT NULL, 0,
            (SELECT COUNT(*) FROM lockkit_claims AS a
             WHERE a.namespace = c.namespace AND a.space = c.space AND a.name = c.name
               AND a.place < c.place)) AS ahead,
         (SELECT GREATEST(1, m.ends - v_now) FROM lockkit_names AS m
          WHERE c.token IS NOT NULL AND c.held IS NULL AND m.namespace = c.namespace
            AND m.space = c.space AND m.name = c.name) AS look,
         IF((c.token IS NULL AND l.last IS NULL) OR c.broken,
            (SELECT b.record FROM lockkit_breaks AS b WHERE b.id = UNHEX(j.id)
             ORDER BY b.n DESC LIMIT 1), NULL) AS record,
         IF(j.n = 1, v_woken, '') AS woken
  FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]')) AS j
  LEFT JOIN lockkit_claims AS c
    ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
   AND c.name = UNHEX(j.name) AND c.expires > v_now
  LEFT JOIN lockkit_names AS l
    ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
   AND l.id = UNHEX(j.id)
  ORDER BY j.n;
  COMMIT;
END

--;
-- Changes one claim that is in line: `what` is 0, its lease ends `value` from now; 1, it becomes
-- shared in its place; 2, its token becomes at least `value`, and every later one of its list
-- greater; 3, transactions of its owner's may rely on it.
-- Row: n 0; state 1 it holds, 2 it waits, 3 it was broken or is not there; token; ttl; ahead; look;
-- record: how it was broken; woken.
CREATE OR REPLACE PROCEDURE lockkit_amend(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16),
  IN p_what TINYINT, IN p_value BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_place, v_token, v_held, v_ttl, v_ahead, v_expires, v_top BIGINT DEFAULT NULL;
  DECLARE v_there, v_outcome, v_broken TINYINT DEFAULT NULL;
  DECLARE v_record BLOB DEFAULT NULL;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  IF p_what = 3 THEN
    -- By itself, before the name's row is locked: a transaction that looked for a row in vain keeps
    -- others from inserting near it, and this must not keep a renewal waiting.
    INSERT IGNORE INTO lockkit_fences (id) VALUES (p_id);
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
  SELECT place, token, expires, held, broken INTO v_place, v_token, v_expires, v_held, v_broken
  FROM lockkit_claims
  WHERE id = p_id AND namespace = p_namespace AND space = p_space AND name = p_name;
  IF v_expires <= v_now THEN
    CALL lockkit_leave(p_namespace, p_space, p_name, v_place);
    SET v_place = NULL;
  END IF;
  IF v_place IS NOT NULL THEN
    IF p_what = 0 THEN
      UPDATE lockkit_claims
      SET expires = IF(broken, LEAST(expires, v_now + p_value), v_now + p_value)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place
        AND held IS NOT NULL;
    ELSE
      UPDATE lockkit_claims
      SET expires = GREATEST(expires, v_now + IF(held IS NULL, wait_ttl, hold_ttl))
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place
        AND NOT broken;
    END IF;
    IF p_what = 1 AND p_space = 0 THEN
      UPDATE lockkit_claims SET weight = 1
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    END IF;
    IF p_what = 3 AND v_held IS NOT NULL AND NOT v_broken THEN
      UPDATE lockkit_claims SET fenced = 1
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    END IF;
    IF p_what = 2 AND v_token < p_value THEN
      -- A raise lifts the waiters behind it as well, or they would get lower tokens later; their
      -- distances stay, so the order does. Shared claims that hold already do not conflict with it.
      UPDATE lockkit_claims SET token = GREATEST(token, p_value + (place - v_place))
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place >= v_place
        AND (place = v_place OR held IS NULL);
      SET v_top = (SELECT MAX(token) FROM lockkit_claims
        WHERE namespace = p_namespace AND space = p_space AND name = p_name);
      UPDATE lockkit_names SET last = GREATEST(last, v_top)
      WHERE namespace = p_namespace AND space = p_space AND name = p_name;
    END IF;
  END IF;
  IF v_there THEN
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
  END IF;
  SET v_outcome = 3;
  SELECT CASE WHEN broken THEN 3 WHEN held IS NULL THEN 2 ELSE 1 END, token, hold_ttl
  INTO v_outcome, v_token, v_ttl
  FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
  IF v_outcome = 2 THEN
    SET v_ahead = (SELECT COUNT(*) FROM lockkit_claims
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place < v_place);
  ELSEIF v_outcome <> 1 THEN
    SET v_record = (SELECT record FROM lockkit_breaks WHERE id = p_id ORDER BY n DESC LIMIT 1);
  END IF;
  COMMIT;
  IF p_what = 3 AND v_outcome <> 1 THEN
    DELETE FROM lockkit_fences
    WHERE id = p_id AND NOT EXISTS (SELECT 1 FROM lockkit_claims WHERE id = p_id);
  END IF;
  SELECT 0 AS n, v_outcome AS state, v_token AS token, v_ttl AS ttl, COALESCE(v_ahead, 0) AS ahead,
         NULL AS look, v_record AS record, v_woken AS woken;
END

--;
-- Breaks the claim of a list that has this token.
-- In: force (1: take it out at once); record (JSON); keep: how long the record stays at least.
-- Row: outcome 1 there was one, 0 there was none; woken.
CREATE OR REPLACE PROCEDURE lockkit_break(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_token BIGINT,
  IN p_force TINYINT, IN p_record BLOB, IN p_keep BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_place, v_until BIGINT DEFAULT NULL;
  DECLARE v_there TINYINT;
  DECLARE v_id BINARY(16);
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
  IF v_there THEN
    CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
  END IF;
  SELECT place, id, GREATEST(v_now + GREATEST(p_keep, hold_ttl, wait_ttl), expires + p_keep)
  INTO v_place, v_id, v_until
  FROM lockkit_claims
  WHERE namespace = p_namespace AND space = p_space AND name = p_name AND token = p_token
    AND expires > v_now LIMIT 1;
  IF v_place IS NOT NULL THEN
    INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
    VALUES (p_namespace, p_space, p_name, v_id, p_record, v_until);
    -- Of a list, only the last one is shown.
    DELETE FROM lockkit_breaks
    WHERE namespace = p_namespace AND space = p_space AND name = p_name AND expires <= v_now
      AND n < LAST_INSERT_ID();
    IF p_force THEN
      CALL lockkit_leave(p_namespace, p_space, p_name, v_place);
      CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
    ELSE
      UPDATE lockkit_claims SET broken = 1
      WHERE namespace = p_namespace AND space = p_space AND name = p_name AND place = v_place;
    END IF;
  END IF;
  COMMIT;
  SELECT v_place IS NOT NULL AS outcome, v_woken AS woken;
END

--;
-- Gives a semaphore a limit that stays, and lets those begin to hold who now do.
-- In: always: 0: only if it has none.
-- Row: the limit that it has now; woken.
--
-- Who holds goes on holding, whatever the limit: settling looks at waiters alone. From here on the list
-- is in lockkit_claims for good, so that the swift acquire, which looks at no limit, finds it in use.
CREATE OR REPLACE PROCEDURE lockkit_resize(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_always TINYINT, IN p_capacity BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_capacity BIGINT DEFAULT NULL;
  DECLARE v_there TINYINT;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  INSERT INTO lockkit_names (namespace, space, name, last) VALUES (p_namespace, p_space, p_name, 0)
  ON DUPLICATE KEY UPDATE crowd = crowd;
  CALL lockkit_enter(p_namespace, p_space, p_name, v_now, v_there);
  CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
  SET v_capacity = p_capacity;
  IF NOT p_always THEN
    -- Without a limit of its own it keeps the one that it is in use with.
    SET v_capacity = COALESCE(
      (SELECT capacity FROM lockkit_limits
       WHERE namespace = p_namespace AND space = p_space AND name = p_name),
      (SELECT capacity FROM lockkit_claims
       WHERE namespace = p_namespace AND space = p_space AND name = p_name LIMIT 1),
      p_capacity);
  END IF;
  INSERT INTO lockkit_limits (namespace, space, name, capacity)
  VALUES (p_namespace, p_space, p_name, v_capacity)
  ON DUPLICATE KEY UPDATE capacity = v_capacity;
  UPDATE lockkit_claims SET capacity = v_capacity
  WHERE namespace = p_namespace AND space = p_space AND name = p_name;
  CALL lockkit_settle(p_namespace, p_space, p_name, v_now, v_woken);
  COMMIT;
  SELECT v_capacity AS capacity, v_woken AS woken;
END

--;
-- Writes or deletes a register.
-- In: value (NULL: delete); expect (0 anything, 1 absent, 2 version); version; token; write_id; ttl;
-- grace: for how long a deletion is remembered; repeated: 1 when an earlier attempt of this write may have
-- been applied.
-- Row: outcome 1 stored (number: the version), 2 stale (number: the highest token), 0 conflict.
--
-- The rule is that of `StoreOutcome::decide`. Version 0 stands for a row that was never written.
--
-- Versions begin at the clock's microseconds, so they grow although the row of a register without a
-- token is removed after a while; should the clock be behind, lockkit_meta remembers.
CREATE OR REPLACE PROCEDURE lockkit_write(
  IN p_namespace VARBINARY(128), IN p_name VARBINARY(512), IN p_value MEDIUMBLOB,
  IN p_expect TINYINT, IN p_version BIGINT, IN p_token BIGINT, IN p_write_id BINARY(16),
  IN p_ttl BIGINT, IN p_grace BIGINT, IN p_repeated TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_version, v_highest, v_number BIGINT DEFAULT NULL;
  DECLARE v_there, v_same TINYINT DEFAULT 0;
  DECLARE v_outcome TINYINT DEFAULT 9;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  INSERT INTO lockkit_registers (namespace, name, version, write_id) VALUES
    (p_namespace, p_name, 0, '')
  ON DUPLICATE KEY UPDATE version = version;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SELECT version, highest, version > 0 AND write_id = p_write_id,
         value IS NOT NULL AND (expires IS NULL OR expires > v_now)
  INTO v_version, v_highest, v_same, v_there
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
      SET v_version = (SELECT floor FROM lockkit_meta WHERE one = 1);
    END IF;
    SET v_outcome = 1, v_number = GREATEST(v_version + 1, v_now);
    UPDATE lockkit_registers
    SET value = p_value, version = v_number, write_id = p_write_id,
        expires = v_now + p_ttl,
        purge_at = CASE WHEN COALESCE(p_token, v_highest) IS NOT NULL AND p_value IS NULL THEN NULL
                        WHEN p_value IS NULL THEN v_now + p_grace
                        ELSE v_now + p_ttl + p_grace END,
        highest = COALESCE(p_token, v_highest)
    WHERE namespace = p_namespace AND name = p_name;
    COMMIT;
  ELSE
    ROLLBACK;
  END IF;
  SELECT v_outcome AS outcome, v_number AS number;
END

--;
-- What clients of versions 1 and 2 call, which do not say that they repeat a write.
-- In, and row: as of `lockkit_write`.
CREATE OR REPLACE PROCEDURE lockkit_store(
  IN p_namespace VARBINARY(128), IN p_name VARBINARY(512), IN p_value MEDIUMBLOB,
  IN p_expect TINYINT, IN p_version BIGINT, IN p_token BIGINT, IN p_write_id BINARY(16),
  IN p_ttl BIGINT, IN p_grace BIGINT)
SQL SECURITY INVOKER
BEGIN
  CALL lockkit_write(p_namespace, p_name, p_value, p_expect, p_version, p_token, p_write_id, p_ttl,
                     p_grace, 0);
END

--;
-- Removes what nobody needs any more, a bite at a time: names unused for long, claims of lists that
-- nobody visits, old records of breaks, registers that are gone. (A list that was given a limit, and is
-- empty, has `crowd` 1 and `ends` 0: it stays.)
-- In: namespace, space, name: where the last bite ended; bite: how many names to look at; idle:
-- after how long an unused name goes.
-- Row: namespace, space, name: where this bite ended (NULL: at the end of the table).
CREATE OR REPLACE PROCEDURE lockkit_sweep(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512),
  IN p_bite INT, IN p_idle BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_last, v_top BIGINT DEFAULT 0;
  DECLARE v_namespace VARBINARY(128);
  DECLARE v_space, v_crowd TINYINT;
  DECLARE v_name VARBINARY(512);
  DECLARE v_seen INT DEFAULT 0;
  DECLARE v_done TINYINT DEFAULT 0;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE v_bite CURSOR FOR
    SELECT namespace, space, name,
           IF(crowd, ends BETWEEN 1 AND v_now, expires <= v_now AND since <= v_now - p_idle), crowd
    FROM lockkit_names
    WHERE namespace > p_namespace
       OR (namespace = p_namespace AND space > p_space)
       OR (namespace = p_namespace AND space = p_space AND name > p_name)
    ORDER BY namespace, space, name LIMIT p_bite;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  OPEN v_bite;
  bite: LOOP
    FETCH v_bite INTO v_namespace, v_space, v_name, v_last, v_crowd;
    IF v_done THEN
      LEAVE bite;
    END IF;
    SET v_seen = v_seen + 1;
    IF v_last THEN
      -- A row that somebody else has is in use.
      SET v_last = NULL;
      SELECT last, crowd INTO v_last, v_crowd FROM lockkit_names
      WHERE namespace = v_namespace AND space = v_space AND name = v_name
        AND IF(crowd, ends BETWEEN 1 AND v_now, expires <= v_now AND since <= v_now - p_idle)
      FOR UPDATE SKIP LOCKED;
      IF v_last IS NOT NULL AND v_crowd THEN
        CALL lockkit_settle(v_namespace, v_space, v_name, v_now, v_woken);
      ELSEIF v_last IS NOT NULL THEN
        SET v_top = GREATEST(v_top, v_last);
        DELETE FROM lockkit_names
        WHERE namespace = v_namespace AND space = v_space AND name = v_name;
      END IF;
      SET v_done = 0;
    END IF;
  END LOOP;
  CLOSE v_bite;

  SET v_top = GREATEST(v_top, COALESCE((SELECT MAX(version) FROM lockkit_registers
    WHERE purge_at <= v_now AND highest IS NULL), 0));
  UPDATE lockkit_meta SET floor = v_top WHERE one = 1 AND floor < v_top;
  DELETE FROM lockkit_registers
  WHERE purge_at <= v_now AND highest IS NULL AND version <= v_top LIMIT 256;
  UPDATE lockkit_registers SET value = NULL, expires = NULL, purge_at = NULL
  WHERE purge_at <= v_now AND highest IS NOT NULL LIMIT 256;
  DELETE FROM lockkit_breaks
  WHERE expires <= v_now
    AND NOT EXISTS (SELECT 1 FROM lockkit_names AS l
                    WHERE l.namespace = lockkit_breaks.namespace AND l.space = lockkit_breaks.space
                      AND l.name = lockkit_breaks.name AND (l.crowd OR l.expires > v_now))
  LIMIT 256;
  COMMIT;
  SELECT IF(v_seen < p_bite, NULL, v_namespace) AS namespace, v_space AS space, v_name AS name,
         v_woken AS woken;
END

--;
