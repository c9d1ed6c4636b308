-- The tables. Each statement ends with a line of two hyphens and a semicolon.
-- Parameters: none; `lockkit_` is replaced by the prefix of choice.
-- Times are microseconds since 1970 on the server's clock, in UTC. Where a lease ends is stored with the
-- time at which that was set (`set_at`). Found in the future, it tells that the clock was ahead and went
-- back: what is left of the lease then counts from now, LEAST(expires, expires - set_at + now).

-- One row for a set of tables.
CREATE TABLE IF NOT EXISTS lockkit_meta (
  one     TINYINT NOT NULL PRIMARY KEY,
  version INT     NOT NULL, -- of this schema
  floor   BIGINT  NOT NULL  -- no name that has no row yet gets a token up to it
) ENGINE=InnoDB
--;
-- Nothing else is done where the tables have another version: an error, since this text is no number.
INSERT INTO lockkit_meta (one, version, floor)
SELECT 2, CONCAT('{other_version}'), 0 FROM lockkit_meta WHERE version <> {version}
--;
-- One row a name: its lock is taken before anything of the name is looked at.
--
-- The only claim of a queue is in this row itself (`id`), so that an uncontended lock
-- costs one row for the acquire and the same row for the release. As soon as there are two, all
-- are rows of lockkit_claims, and `has_claim_rows` is 1 until the last of them has left; for good where the queue
-- was given a limit.
--
-- Who leaves makes `expires` 0 and nothing else. So a row without a claim still has what the last one
-- wrote, its id too: what counts is `expires`, never whether there is an id.
CREATE TABLE IF NOT EXISTS lockkit_names (
  namespace VARBINARY(128) NOT NULL,
  space     TINYINT        NOT NULL,           -- 0 lock, 1 semaphore
  name      VARBINARY(512) NOT NULL,
  last      BIGINT         NOT NULL,           -- the greatest token given; that of the claim here
  has_claim_rows     TINYINT        NOT NULL DEFAULT 0, -- the queue is in lockkit_claims
  next      BIGINT         NOT NULL DEFAULT 0, -- 0: no claim waits; else not behind its first waiter
  ends      BIGINT         NOT NULL DEFAULT 0, -- when its first are to be examined again
  id        BINARY(16),                        -- of the claim here, or of the last one
  weight    BIGINT         NOT NULL DEFAULT 0,
  capacity  BIGINT         NOT NULL DEFAULT 0,
  hold_ttl  BIGINT         NOT NULL DEFAULT 0,
  wait_ttl  BIGINT         NOT NULL DEFAULT 0,
  since     BIGINT         NOT NULL DEFAULT 0, -- when the name was used last: the claim here holds since
  expires   BIGINT         NOT NULL DEFAULT 0, -- of the claim here
  identity  BLOB,                              -- JSON
  note      BLOB,
  set_at    BIGINT         NOT NULL DEFAULT 0,
  fixed_limit     BIGINT,                            -- the limit that a semaphore was given, for good
  PRIMARY KEY (namespace, space, name)
) ENGINE=InnoDB
--;
-- One row a claim of a queue that has had two at a time, in the order of the queue.
CREATE TABLE IF NOT EXISTS lockkit_claims (
  namespace VARBINARY(128) NOT NULL,
  space     TINYINT        NOT NULL,
  name      VARBINARY(512) NOT NULL,
  sequence  BIGINT         NOT NULL,           -- the order
  token     BIGINT         NOT NULL,           -- the same number, unless raised
  id        BINARY(16)     NOT NULL,
  weight    BIGINT         NOT NULL,
  capacity  BIGINT         NOT NULL,
  hold_ttl  BIGINT         NOT NULL,
  wait_ttl  BIGINT         NOT NULL,
  queued    BIGINT         NOT NULL,           -- since when it is queued
  expires   BIGINT         NOT NULL,
  held      BIGINT,                            -- since when it holds; NULL while it waits
  broken    TINYINT        NOT NULL DEFAULT 0,
  fenced    TINYINT        NOT NULL DEFAULT 0, -- has a row in lockkit_fences
  identity  BLOB,
  note      BLOB,
  set_at    BIGINT         NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, space, name, sequence),
  UNIQUE KEY lockkit_by_id (id)
) ENGINE=InnoDB
--;
-- A claim that transactions of its owner's rely on: they lock its row here for sharing, and who
-- takes the claim out of its queue deletes this row first, or leaves the claim where it is.
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
  set_at    BIGINT         NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, name),
  KEY lockkit_registers_to_purge (purge_at)
) ENGINE=InnoDB
--;
CREATE TABLE IF NOT EXISTS lockkit_counters (
  namespace VARBINARY(128) NOT NULL PRIMARY KEY,
  counter      BIGINT         NOT NULL,
  neighbours   VARBINARY(512)        -- with which its locks are shared: `?neighbours=` of its processes
) ENGINE=InnoDB
--;
-- For people: who holds, who waits, for how many more seconds without a renewal.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW lockkit_queue AS
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
  SELECT namespace, space, name, sequence, token, weight, capacity, expires, held, identity, note
  FROM lockkit_claims
  UNION ALL
  SELECT namespace, space, name, last, last, weight, capacity, expires, since, identity, note
  FROM lockkit_names WHERE id IS NOT NULL
) AS all_claims
WHERE expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY namespace, space, name, sequence
--;
