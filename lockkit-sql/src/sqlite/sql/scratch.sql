-- What every connection has of its own, in memory: where a verb puts its answer.
-- Parameters: none.
--
-- The answer of a verb cannot be read back from the tables, since another process may have changed
-- them a moment later; so the trigger writes it here, in the verb's own transaction.
CREATE TEMP TABLE lockkit_answer (
  one     INTEGER PRIMARY KEY,
  outcome INTEGER,
  token   INTEGER,
  held    INTEGER,
  ahead   INTEGER,
  ttl     INTEGER,
  place   INTEGER
);
INSERT INTO temp.lockkit_answer (one) VALUES (1);

-- The claims that a verb made holders.
CREATE TEMP TABLE lockkit_promoted (id BLOB NOT NULL);

-- The first waiters of a list: those who may begin to hold, or have ended.
CREATE TEMP TABLE lockkit_front (place INTEGER PRIMARY KEY, live INTEGER, fits INTEGER);

-- The claims of a renewal.
CREATE TEMP TABLE lockkit_batch (
  n         INTEGER PRIMARY KEY,
  id        BLOB NOT NULL,
  hold_ttl  INTEGER NOT NULL,
  wait_ttl  INTEGER NOT NULL,
  namespace TEXT,
  space     INTEGER,
  name      TEXT,
  place     INTEGER,
  settle    INTEGER NOT NULL DEFAULT 0,
  token     INTEGER,
  held      INTEGER,
  broken    INTEGER
);
CREATE INDEX temp.lockkit_batch_by_id ON lockkit_batch (id);
