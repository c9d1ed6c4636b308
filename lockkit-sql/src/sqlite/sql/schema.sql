-- The tables. Run once, in one transaction, on an empty file.
-- Parameters: none; the row of lockkit_meta is put in where they are made.
-- Times are nanoseconds on the boot clock of the boot that lockkit_meta names.

CREATE TABLE lockkit_meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  version INTEGER NOT NULL,                        -- of this schema
  boot    TEXT NOT NULL, epoch INTEGER NOT NULL,   -- whose clock the times are of; counts the boots
  token   INTEGER NOT NULL,   -- the floor: a queue that has no row goes on above it
  ceiling INTEGER NOT NULL    -- on disk before any token up to it is given
);

-- One row a claim, in the order of its queue: the whole queue of a lock is one range of this tree.
--
-- What a write costs is the pages that it touches, so an uncontended acquire touches one and its
-- release the same one. Therefore there is no counter that every acquire writes: a sequence number is
-- greater than the last of its queue and than the floor in lockkit_meta, and no less than the wall clock's
-- microseconds. And therefore the last claim
-- to leave a queue stays as a row that has ended (`expires` 0), which remembers the number. It is
-- always alone in its queue. The next claim takes it away; so does the sweep, which raises the floor
-- first, as every operation does that removes the last row of a queue.
CREATE TABLE lockkit_claims (
  namespace TEXT NOT NULL, space INTEGER NOT NULL, name TEXT NOT NULL, -- space: 0 lock, 1 semaphore
  sequence  INTEGER NOT NULL, -- the order
  token     INTEGER NOT NULL, -- the same number, unless raised
  id        BLOB    NOT NULL,
  weight    INTEGER NOT NULL, capacity INTEGER NOT NULL,
  hold_ttl  INTEGER NOT NULL, wait_ttl INTEGER NOT NULL,
  queued    INTEGER NOT NULL, -- since when it is queued
  asked     INTEGER NOT NULL, -- when its owner last asked for it
  expires   INTEGER NOT NULL,
  held      INTEGER,          -- since when it holds; NULL while it waits
  broken    INTEGER NOT NULL DEFAULT 0,
  identity  TEXT    NOT NULL, -- JSON
  note      TEXT,
  PRIMARY KEY (namespace, space, name, sequence)
) WITHOUT ROWID;
-- Holders are found at the front of their queue.
CREATE UNIQUE INDEX lockkit_waiters ON lockkit_claims (id) WHERE held IS NULL;

-- The limits that semaphores were given, for good.
CREATE TABLE lockkit_limits (
  namespace TEXT NOT NULL, name TEXT NOT NULL, capacity INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

-- Who broke which claim; kept until its owner must know by himself.
CREATE TABLE lockkit_breaks (
  n         INTEGER PRIMARY KEY,
  namespace TEXT NOT NULL, space INTEGER NOT NULL, name TEXT NOT NULL,
  id        BLOB NOT NULL,
  record    TEXT NOT NULL, -- JSON
  expires   INTEGER NOT NULL
);
CREATE INDEX lockkit_breaks_by_list ON lockkit_breaks (namespace, space, name, n);
CREATE INDEX lockkit_breaks_by_id   ON lockkit_breaks (id);

-- Lists with waiters in which something happened, for the pollers of other processes.
CREATE TABLE lockkit_changes (
  n INTEGER PRIMARY KEY, namespace TEXT NOT NULL, space INTEGER NOT NULL, name TEXT NOT NULL
);

CREATE TABLE lockkit_registers (
  namespace TEXT NOT NULL, name TEXT NOT NULL,
  value     BLOB,             -- NULL: there is none
  version   INTEGER NOT NULL,
  highest   INTEGER,          -- the highest token of any write
  write_id  BLOB    NOT NULL, -- of the last write that was applied
  ttl       INTEGER, expires INTEGER,
  purge_at  INTEGER,          -- when a row without a value and without a token may go
  PRIMARY KEY (namespace, name)
);
CREATE INDEX lockkit_registers_to_purge ON lockkit_registers (purge_at) WHERE purge_at IS NOT NULL;

CREATE TABLE lockkit_counters (namespace TEXT PRIMARY KEY, counter INTEGER NOT NULL) WITHOUT ROWID;

-- For people: who holds, who waits. (`left_s` needs the boot clock, so it is not here.)
CREATE VIEW lockkit_queue AS
SELECT namespace, CASE space WHEN 0 THEN 'lock' ELSE 'semaphore' END AS space, name, token,
       CASE WHEN held IS NULL THEN 'waits' ELSE 'holds' END AS state,
       CASE WHEN space = 1 THEN 'permits' WHEN weight = capacity THEN 'exclusive' ELSE 'shared' END
         AS mode,
       weight, capacity, identity, note
FROM lockkit_claims WHERE expires > 0 ORDER BY namespace, space, name, sequence;
