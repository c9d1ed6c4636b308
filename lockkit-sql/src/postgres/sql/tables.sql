-- The tables, version {version}. Run as one message, which is one transaction: the lock taken first
-- lets those who start at the same time follow one another, and later ones change nothing.
-- Names, identities and notes are bytes: no collation, no encoding, no case.
-- Times are microseconds since 1970 by this server's clock. Where a lease ends is stored with the time at
-- which that was set (`set_at`). Found in the future, it tells that the clock was ahead and went back:
-- what is left of the lease then counts from now.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = 0;
SELECT pg_catalog.pg_advisory_xact_lock(7308324465849692011);
CREATE SCHEMA IF NOT EXISTS "{schema}";

CREATE TABLE IF NOT EXISTS {p}meta (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version bigint NOT NULL,   -- of these tables and functions
  floor   bigint NOT NULL    -- no queue that is new gives a token up to this
);

-- Nothing is changed where the tables have another version.
DO $$ DECLARE v_version bigint; BEGIN
  SELECT version INTO v_version FROM {p}meta;
  IF v_version <> {version} THEN
    RAISE EXCEPTION '{other_version}', v_version;
  END IF;
END $$;

-- One row a queue. An operation that changes a queue changes its row first: the row lock puts the operations of one
-- queue in order, and the change makes a transaction with an older snapshot fail, not err.
--
-- A claim that is alone in its queue is in this row (`id`), so that an uncontended lock
-- costs one row, and no index, for the acquire and for the release. Every operation but these two first
-- moves it to `claims`, and `has_claim_rows` says that the queue is there, until it is empty; for good where the
-- queue was given a limit, so that no claim enters without a check of it.
CREATE TABLE IF NOT EXISTS {p}names (
  namespace bytea    NOT NULL,
  space     smallint NOT NULL,  -- 0 lock, 1 semaphore
  name      bytea    NOT NULL,
  queue      bigint   NOT NULL GENERATED ALWAYS AS IDENTITY UNIQUE,
  last      bigint   NOT NULL,  -- the last number and token given; those of the claim here
  used      bigint   NOT NULL,  -- when it was last changed; since when the claim here holds
  has_claim_rows     boolean  NOT NULL DEFAULT true,
  expires   bigint   NOT NULL DEFAULT 0,  -- of the claim here
  id        bytea,
  weight    bigint   NOT NULL DEFAULT 0,
  capacity  bigint   NOT NULL DEFAULT 0,
  hold_ttl  bigint   NOT NULL DEFAULT 0,
  wait_ttl  bigint   NOT NULL DEFAULT 0,
  identity  bytea,              -- JSON
  note      bytea,
  fixed_limit     bigint,             -- the limit that a semaphore was given, for good
  set_at    bigint   NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, space, name)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- One row a claim of a queue that has had two at a time. `expires`, `held` and what else a renewal
-- writes are in no index, so that it writes no index, and does not wait for a transaction that fences
-- with this claim.
CREATE TABLE IF NOT EXISTS {p}claims (
  id       bytea   PRIMARY KEY,       -- secret: a client that knows it can release the claim
  queue     bigint  NOT NULL,
  sequence bigint  NOT NULL,          -- the order
  token    bigint  NOT NULL,          -- the same number, unless raised
  weight   bigint  NOT NULL,
  capacity bigint  NOT NULL,          -- of a holder: as it came; that of the queue may have changed
  hold_ttl bigint  NOT NULL,
  wait_ttl bigint  NOT NULL,
  queued   bigint  NOT NULL,          -- since when it is queued
  expires  bigint  NOT NULL,          -- 0: released, but a transaction is fenced with it
  held     bigint,                    -- since when it holds; NULL while it waits
  broken   boolean NOT NULL DEFAULT false,
  client   bytea   NOT NULL,          -- whom to tell
  identity bytea   NOT NULL,          -- JSON
  note     bytea,
  set_at   bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX IF NOT EXISTS lockkit_claims_queue ON {p}claims (queue, sequence);

-- Who broke which claim.
CREATE TABLE IF NOT EXISTS {p}breaks (
  n       bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  queue    bigint NOT NULL,
  id      bytea  NOT NULL,
  record  bytea  NOT NULL,            -- JSON
  expires bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS lockkit_breaks_by_queue ON {p}breaks (queue, n);
CREATE INDEX IF NOT EXISTS lockkit_breaks_id ON {p}breaks (id);

CREATE TABLE IF NOT EXISTS {p}registers (
  namespace bytea  NOT NULL,
  name      bytea  NOT NULL,
  value     bytea,                    -- NULL: there is none
  version   bigint NOT NULL,
  highest   bigint,                   -- the highest token of any write
  write_id  bytea  NOT NULL,          -- of the last write that was applied
  expires   bigint,
  purge_at  bigint,                   -- when its value may go, and without a token the row
  set_at    bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, name)
);
CREATE INDEX IF NOT EXISTS lockkit_registers_purge ON {p}registers (purge_at)
  WHERE purge_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS {p}counters (
  namespace  bytea  PRIMARY KEY,
  counter    bigint NOT NULL,
  neighbours bytea                    -- the locks of other libraries that its locks exclude
);

-- This server's clock. Not now(), which stands still in a transaction. (A double counts microseconds
-- exactly until the year 2255, and is cheaper than a decimal.)
CREATE OR REPLACE FUNCTION {p}clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

-- Where a lease ends that was set at this time. `p_now` may be older than that without a clock that went
-- back, as another operation may have come behind it: then the clock is read again.
CREATE OR REPLACE FUNCTION {p}ends(p_expires bigint, p_set_at bigint, p_now bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
  SELECT p_expires - CASE WHEN p_set_at > p_now THEN greatest(p_set_at - {p}clock(), 0) ELSE 0 END
$$;

-- For people: who holds, who waits.
CREATE OR REPLACE VIEW {p}queue AS
SELECT convert_from(n.namespace, 'UTF8') AS namespace,
       CASE n.space WHEN 0 THEN 'lock' ELSE 'semaphore' END AS space,
       convert_from(n.name, 'UTF8') AS name, c.token,
       CASE WHEN c.held IS NULL THEN 'waits' ELSE 'holds' END AS state,
       CASE WHEN n.space = 1 THEN 'permits' WHEN c.weight = c.capacity THEN 'exclusive'
            ELSE 'shared' END AS mode,
       c.weight, coalesce(n.fixed_limit, c.capacity) AS capacity, to_timestamp(c.queued / 1e6) AS queued,
       to_timestamp(c.held / 1e6) AS held, to_timestamp(c.expires / 1e6) AS expires, c.broken,
       convert_from(c.identity, 'UTF8') AS identity, convert_from(c.note, 'UTF8') AS note
FROM {p}names AS n JOIN (
  SELECT queue, sequence, token, weight, capacity, queued, held, expires, broken, identity, note
  FROM {p}claims
  UNION ALL
  SELECT queue, last, last, weight, capacity, used, used, expires, false, identity, note
  FROM {p}names WHERE id IS NOT NULL AND expires > {p}clock()
) AS c USING (queue)
ORDER BY n.namespace, n.space, n.name, c.sequence;
