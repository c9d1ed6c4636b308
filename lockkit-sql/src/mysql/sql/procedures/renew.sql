-- Renews many claims at once.
-- In: claims: a JSON array of [id, hold_ttl, wait_ttl, namespace, space, name], texts in hexadecimal
-- digits, in the order of their queues: rows are locked in this order by all clients, so that two
-- renewals never wait for each other. `CLAIMS` of schema.rs is the table of its elements.
-- Of several claims, one whose row another transaction has locked is left out, as its name's row is: to wait for it
-- would delay, or fail, the renewal of the others. One claim waits for its rows.
-- Rows: n (from 0); state 1 it holds, 2 it waits, 3 it was broken or is not there, 9 it was left out; token; ttl;
-- ahead; next_poll: until a claim ahead ends; record: how it was broken; woken: on the first row. There
-- also evidence: the server's clock; which server; no position; the connection.
CREATE PROCEDURE lockkit_renew(IN p_claims LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  DECLARE v_namespace VARBINARY(128);
  DECLARE v_space TINYINT;
  DECLARE v_name VARBINARY(512);
  DECLARE v_id BINARY(16);
  DECLARE v_n INT;
  DECLARE v_done, v_has_claim_rows, v_free, v_locked TINYINT DEFAULT 0;
  -- Safe updates want a key for each table, and a JSON_TABLE has none.
  DECLARE v_safe TINYINT DEFAULT @@SESSION.sql_safe_updates;
  DECLARE v_woken BLOB DEFAULT '';
  DECLARE v_each CURSOR FOR
    SELECT j.n, UNHEX(j.namespace), j.space, UNHEX(j.name), UNHEX(j.id) FROM {claims} AS j;
  DECLARE v_queues CURSOR FOR
    SELECT DISTINCT l.namespace, l.space, l.name
    FROM {claims} AS j
    STRAIGHT_JOIN lockkit_names AS l
      ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
    WHERE l.has_claim_rows;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET SESSION sql_safe_updates = v_safe;
    RESIGNAL;
  END;

  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  SET SESSION sql_safe_updates = 0;
  IF JSON_LENGTH(p_claims) > 1 THEN
    OPEN v_each;
    each_claim: LOOP
      SET v_done = 0, v_has_claim_rows = NULL, v_free = NULL, v_locked = 0;
      FETCH v_each INTO v_n, v_namespace, v_space, v_name, v_id;
      IF v_done THEN
        LEAVE each_claim;
      END IF;
      SELECT l.has_claim_rows, c.id IS NOT NULL INTO v_has_claim_rows, v_free
      FROM lockkit_names AS l LEFT JOIN lockkit_claims AS c ON c.id = v_id AND l.has_claim_rows
      WHERE l.namespace = v_namespace AND l.space = v_space AND l.name = v_name
      FOR UPDATE SKIP LOCKED;
      -- What is locked seems not to be there: a read without a lock tells which.
      IF v_has_claim_rows IS NULL THEN
        SELECT 1 INTO v_locked FROM lockkit_names
        WHERE namespace = v_namespace AND space = v_space AND name = v_name;
      ELSEIF v_has_claim_rows AND NOT v_free THEN
        SELECT 1 INTO v_locked FROM lockkit_claims WHERE id = v_id;
      END IF;
      IF v_locked THEN
        SET p_claims = JSON_SET(p_claims, CONCAT('$[', v_n - 1, ']'), JSON_ARRAY());
      END IF;
    END LOOP;
    CLOSE v_each;
  END IF;
  -- Locks the rows: MySQL has no FOR UPDATE beside a JSON_TABLE. By the index: of a small table the
  -- optimizer would read, and so lock, all rows.
  UPDATE {claims} AS j
  STRAIGHT_JOIN lockkit_names AS l FORCE INDEX (PRIMARY)
    ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
  SET l.has_claim_rows = l.has_claim_rows;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

  -- Those in their name's own row. One whose answer says that it has ended is taken out.
  UPDATE {claims} AS j
  STRAIGHT_JOIN lockkit_names AS l FORCE INDEX (PRIMARY)
    ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
   AND l.id = UNHEX(j.id)
  SET l.id = IF(l.expires > v_now, l.id, NULL),
      l.expires = IF(l.expires > v_now,
        GREATEST(LEAST(l.expires, l.expires - l.set_at + v_now), v_now + j.hold_ttl), 0),
      l.set_at = v_now,
      l.hold_ttl = j.hold_ttl, l.wait_ttl = j.wait_ttl;

  -- The others.
  SET v_done = 0;
  OPEN v_queues;
  queues: LOOP
    FETCH v_queues INTO v_namespace, v_space, v_name;
    IF v_done THEN
      LEAVE queues;
    END IF;
    CALL lockkit_promote(v_namespace, v_space, v_name, v_now, v_woken);
    SET v_done = 0;
  END LOOP;
  CLOSE v_queues;
  -- A waiter that has ended behind others, where settling does not look.
  DELETE c FROM {claims} AS j
  STRAIGHT_JOIN lockkit_claims AS c FORCE INDEX (lockkit_by_id)
    ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
   AND c.name = UNHEX(j.name)
  WHERE c.expires <= v_now AND c.held IS NULL;
  UPDATE {claims} AS j
  STRAIGHT_JOIN lockkit_claims AS c FORCE INDEX (lockkit_by_id)
    ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
   AND c.name = UNHEX(j.name)
  SET c.expires = GREATEST(c.expires, v_now + IF(c.held IS NULL, j.wait_ttl, j.hold_ttl)),
      c.set_at = v_now, c.hold_ttl = j.hold_ttl, c.wait_ttl = j.wait_ttl
  WHERE NOT c.broken AND c.expires > v_now;

  SELECT j.n - 1 AS n,
         CASE WHEN j.id IS NULL THEN 9
              WHEN (c.token IS NULL AND l.last IS NULL) OR c.broken THEN 3
              WHEN c.token IS NOT NULL AND c.held IS NULL THEN 2 ELSE 1 END AS state,
         COALESCE(c.token, l.last) AS token, COALESCE(c.hold_ttl, l.hold_ttl) AS ttl,
         IF(c.token IS NULL OR c.held IS NOT NULL, 0, p.ahead) AS ahead,
         (SELECT GREATEST(1, m.ends - v_now) FROM lockkit_names AS m
          WHERE c.token IS NOT NULL AND c.held IS NULL AND m.namespace = c.namespace
            AND m.space = c.space AND m.name = c.name) AS next_poll,
         IF((c.token IS NULL AND l.last IS NULL) OR c.broken,
            (SELECT b.record FROM lockkit_breaks AS b WHERE b.id = UNHEX(j.id)
             ORDER BY b.n DESC LIMIT 1), NULL) AS record,
         IF(j.n = 1, v_woken, '') AS woken,
         IF(j.n = 1, v_now, NULL) AS time,
         IF(j.n = 1, CONCAT_WS('-', @@hostname, @@port, @@server_id /*!80000 , @@server_uuid */), NULL)
           AS run,
         NULL AS position, IF(j.n = 1, CONNECTION_ID(), NULL) AS connection
  FROM {claims} AS j
  LEFT JOIN lockkit_claims AS c FORCE INDEX (lockkit_by_id)
    ON c.id = UNHEX(j.id) AND c.namespace = UNHEX(j.namespace) AND c.space = j.space
   AND c.name = UNHEX(j.name) AND c.expires > v_now
  LEFT JOIN (
    SELECT a.id, ROW_NUMBER() OVER (
      PARTITION BY a.namespace, a.space, a.name ORDER BY a.sequence) - 1 AS ahead
    FROM (SELECT DISTINCT w.namespace, w.space, w.name
          FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (id CHAR(32) PATH '$[0]')) AS i
          STRAIGHT_JOIN lockkit_claims AS w FORCE INDEX (lockkit_by_id) ON w.id = UNHEX(i.id)
          WHERE w.held IS NULL) AS q
    STRAIGHT_JOIN lockkit_claims AS a
      ON a.namespace = q.namespace AND a.space = q.space AND a.name = q.name
  ) AS p ON p.id = UNHEX(j.id)
  LEFT JOIN lockkit_names AS l
    ON l.namespace = UNHEX(j.namespace) AND l.space = j.space AND l.name = UNHEX(j.name)
   AND l.id = UNHEX(j.id)
  ORDER BY j.n LIMIT 18446744073709551615;
  COMMIT AND NO CHAIN NO RELEASE;
  SET SESSION sql_safe_updates = v_safe;
END
--;
