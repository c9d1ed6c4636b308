-- The tables and functions of version 1, in the schema `version_1`, as lockkit made them.
-- The tables, version 1. Run as one message, which is one transaction: the lock taken first
-- lets those who start at the same time follow one another, and whoever comes later changes nothing.
-- Names, identities and notes are bytes: no collation, no encoding, no case.
-- Times are microseconds since 1970 by this server's clock.
BEGIN;
SELECT pg_catalog.pg_advisory_xact_lock(7308324465849692011);
CREATE SCHEMA IF NOT EXISTS "version_1";

CREATE TABLE IF NOT EXISTS "version_1".lockkit_meta (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version bigint NOT NULL,   -- of these tables and functions
  floor   bigint NOT NULL    -- no list that is new gives a token up to this
);

-- One row a list. Whoever changes a list changes its row first: the row lock puts the verbs of one
-- list in order, and the change makes a transaction with an older snapshot fail, not err.
CREATE TABLE IF NOT EXISTS "version_1".lockkit_names (
  namespace bytea    NOT NULL,
  space     smallint NOT NULL,  -- 0 lock, 1 semaphore
  name      bytea    NOT NULL,
  list      bigint   NOT NULL GENERATED ALWAYS AS IDENTITY UNIQUE,
  last      bigint   NOT NULL,  -- the last place and token given
  used      bigint   NOT NULL,  -- when it was last changed
  PRIMARY KEY (namespace, space, name)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- One row a claim. `expires`, `held` and what else a renewal writes are in no index, so that it
-- writes no index, and does not wait for a transaction that fences with this claim.
CREATE TABLE IF NOT EXISTS "version_1".lockkit_claims (
  id       bytea   PRIMARY KEY,       -- secret: whoever knows it can release the claim
  list     bigint  NOT NULL,
  place    bigint  NOT NULL,          -- the order
  token    bigint  NOT NULL,          -- the place, unless raised
  weight   bigint  NOT NULL,
  capacity bigint  NOT NULL,
  hold_ttl bigint  NOT NULL,
  wait_ttl bigint  NOT NULL,
  queued   bigint  NOT NULL,          -- since when it is in line
  expires  bigint  NOT NULL,          -- 0: released, but a transaction is fenced with it
  held     bigint,                    -- since when it holds; NULL while it waits
  broken   boolean NOT NULL DEFAULT false,
  client   bytea   NOT NULL,          -- whom to tell
  identity bytea   NOT NULL,          -- JSON
  note     bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX IF NOT EXISTS lockkit_claims_line ON "version_1".lockkit_claims (list, place);

-- Who broke which claim.
CREATE TABLE IF NOT EXISTS "version_1".lockkit_breaks (
  n       bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  list    bigint NOT NULL,
  id      bytea  NOT NULL,
  record  bytea  NOT NULL,            -- JSON
  expires bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS lockkit_breaks_list ON "version_1".lockkit_breaks (list, n);
CREATE INDEX IF NOT EXISTS lockkit_breaks_id ON "version_1".lockkit_breaks (id);

CREATE TABLE IF NOT EXISTS "version_1".lockkit_registers (
  namespace bytea  NOT NULL,
  name      bytea  NOT NULL,
  value     bytea,                    -- NULL: there is none
  version   bigint NOT NULL,
  highest   bigint,                   -- the highest token of any write
  write_id  bytea  NOT NULL,          -- of the last write that was applied
  expires   bigint,
  purge_at  bigint,                   -- when a row without a value and without a token may go
  PRIMARY KEY (namespace, name)
);
CREATE INDEX IF NOT EXISTS lockkit_registers_purge ON "version_1".lockkit_registers (purge_at)
  WHERE purge_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS "version_1".lockkit_bases (
  namespace bytea  PRIMARY KEY,
  base      bigint NOT NULL
);

-- This server's clock. Not now(), which stands still in a transaction.
CREATE OR REPLACE FUNCTION "version_1".lockkit_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- For people: who holds, who waits.
CREATE OR REPLACE VIEW "version_1".lockkit_line AS
SELECT convert_from(n.namespace, 'UTF8') AS namespace,
       CASE n.space WHEN 0 THEN 'lock' ELSE 'semaphore' END AS space,
       convert_from(n.name, 'UTF8') AS name, c.token,
       CASE WHEN c.held IS NULL THEN 'waits' ELSE 'holds' END AS state,
       CASE WHEN n.space = 1 THEN 'permits' WHEN c.weight = c.capacity THEN 'exclusive'
            ELSE 'shared' END AS mode,
       c.weight, c.capacity, to_timestamp(c.queued / 1e6) AS queued,
       to_timestamp(c.held / 1e6) AS held, to_timestamp(c.expires / 1e6) AS expires, c.broken,
       convert_from(c.identity, 'UTF8') AS identity, convert_from(c.note, 'UTF8') AS note
FROM "version_1".lockkit_claims AS c JOIN "version_1".lockkit_names AS n USING (list)
ORDER BY n.namespace, n.space, n.name, c.place;

-- What stands for a claim where others can see it.
CREATE OR REPLACE FUNCTION "version_1".lockkit_tag(p_id bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT substr(sha256(p_id), 1, 8) $$;

-- Tells whoever asked for a claim: `g` it holds, `l` it is to look.
CREATE OR REPLACE FUNCTION "version_1".lockkit_tell(p_client bytea, p_word text, p_id bytea, p_token bigint)
RETURNS void LANGUAGE sql VOLATILE AS
$$ SELECT pg_notify('lockkit_' || encode(p_client, 'hex'),
                    p_word || ' ' || encode("version_1".lockkit_tag(p_id), 'hex') || ' ' || p_token) $$;

-- Takes out whose lease has ended, and lets those begin to hold who now do.
-- The row of the list is locked by the caller. A claim with which a transaction is fenced is locked,
-- and stays until that transaction has ended; nobody waits for it here.
-- Result: the tags of the new holders. They are told, but for `p_mine`, which learns it from the
-- answer.
CREATE OR REPLACE FUNCTION "version_1".lockkit_settle(p_list bigint, p_now bigint, p_mine bytea)
RETURNS bytea LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c      record;
  v_sum  bigint := 0;
  v_hold bigint;
  v_tags bytea;
BEGIN
  DELETE FROM "version_1".lockkit_claims WHERE id IN (
    SELECT id FROM "version_1".lockkit_claims WHERE list = p_list AND expires <= p_now
    FOR UPDATE SKIP LOCKED);
  FOR c IN SELECT * FROM "version_1".lockkit_claims WHERE list = p_list ORDER BY place LOOP
    v_sum := v_sum + c.weight;
    IF v_sum > c.capacity THEN
      -- The next in line asks by itself, with its renewals. When the one before it may end sooner
      -- than that, it is told to.
      IF v_hold * 3 < c.wait_ttl AND c.id IS DISTINCT FROM p_mine THEN
        PERFORM "version_1".lockkit_tell(c.client, 'l', c.id, 0);
      END IF;
      EXIT;
    END IF;
    CONTINUE WHEN c.held IS NOT NULL OR c.expires <= p_now;
    UPDATE "version_1".lockkit_claims SET held = p_now, expires = greatest(expires, p_now + hold_ttl)
    WHERE id = c.id;
    v_tags := coalesce(v_tags, '') || "version_1".lockkit_tag(c.id);
    IF c.id IS DISTINCT FROM p_mine THEN
      v_hold := c.hold_ttl;
      PERFORM "version_1".lockkit_tell(c.client, 'g', c.id, c.token);
    END IF;
  END LOOP;
  RETURN v_tags;
END $$;

-- How a claim stands. Changes nothing.
-- Result: state (0 not in line, 1 holds, 2 waits, 3 broken), token, ttl, how many are ahead, after how
-- long to look again, record of its break. The next in line looks when any lease ends, the others
-- when that of the one right before them does; a lease that has ended and still stands is that of a
-- fence.
CREATE OR REPLACE FUNCTION "version_1".lockkit_stands(p_id bytea, p_now bigint,
  OUT state bigint, OUT token bigint, OUT ttl bigint, OUT ahead bigint, OUT look bigint,
  OUT record bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c       record;
  v_waits boolean;
BEGIN
  SELECT * INTO c FROM "version_1".lockkit_claims AS k WHERE k.id = p_id;
  IF NOT FOUND OR c.broken OR c.expires <= p_now THEN
    SELECT b.record INTO record FROM "version_1".lockkit_breaks AS b WHERE b.id = p_id ORDER BY n DESC LIMIT 1;
    state := CASE WHEN record IS NULL THEN 0 ELSE 3 END;
    RETURN;
  END IF;
  token := c.token;
  IF c.held IS NOT NULL THEN
    state := 1;
    ttl := c.hold_ttl;
    RETURN;
  END IF;
  state := 2;
  SELECT count(*) INTO ahead FROM "version_1".lockkit_claims AS k WHERE k.list = c.list AND k.place < c.place;
  SELECT k.held IS NULL, k.expires INTO v_waits, look
  FROM "version_1".lockkit_claims AS k WHERE k.list = c.list AND k.place < c.place ORDER BY k.place DESC LIMIT 1;
  IF NOT v_waits THEN
    SELECT min(k.expires) INTO look
    FROM "version_1".lockkit_claims AS k WHERE k.list = c.list AND k.place < c.place;
  END IF;
  look := look - p_now;
  look := CASE WHEN look > 0 THEN look WHEN ahead > 0 THEN 50000 ELSE 0 END;
END $$;

-- Puts a claim at the end of its list. Arguments and result: `Verb::Acquire`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_acquire(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_weight bigint, p_capacity bigint, p_hold bigint, p_wait bigint, p_client bytea,
  p_identity bytea, p_note bytea, p_try bigint,
  OUT outcome bigint, OUT token bigint, OUT ttl bigint, OUT ahead bigint, OUT look bigint,
  OUT woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_list bigint;
  v_last bigint;
  v_now  bigint;
  v_sum  bigint;
  v_held bigint;
  c      record;
  s      record;
BEGIN
  -- Whoever would not wait looks first: what is held by somebody else needs no lock to be seen.
  IF p_try = 1 THEN
    v_now := "version_1".lockkit_clock();
    SELECT n.list INTO v_list FROM "version_1".lockkit_names AS n
    WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name;
    IF FOUND THEN
      SELECT sum(k.weight) AS weight, bool_or(k.id = p_id OR k.capacity <> p_capacity) AS other
      INTO c FROM "version_1".lockkit_claims AS k WHERE k.list = v_list AND k.expires > v_now;
      IF c.weight + p_weight > p_capacity AND NOT c.other THEN
        outcome := 0;
        RETURN;
      END IF;
    END IF;
  END IF;

  -- Lock the list, and take the number under its lock: never less than the clock, so that numbers
  -- grow even if the row is lost.
  UPDATE "version_1".lockkit_names AS n SET used = "version_1".lockkit_clock(), last = greatest(n.last + 1, "version_1".lockkit_clock())
  WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name
  RETURNING n.list, n.last INTO v_list, v_last;
  IF NOT FOUND THEN
    INSERT INTO "version_1".lockkit_names AS n (namespace, space, name, last, used)
    VALUES (p_namespace, p_space::smallint, p_name, "version_1".lockkit_clock(), "version_1".lockkit_clock())
    ON CONFLICT (namespace, space, name) DO UPDATE
    SET used = "version_1".lockkit_clock(), last = greatest(n.last + 1, "version_1".lockkit_clock())
    RETURNING n.list, n.last INTO v_list, v_last;
    -- The row may have been there and was removed, with numbers that the clock has not reached.
    IF v_last <= (SELECT floor FROM "version_1".lockkit_meta) THEN
      UPDATE "version_1".lockkit_names AS n SET last = (SELECT floor + 1 FROM "version_1".lockkit_meta) WHERE n.list = v_list
      RETURNING n.last INTO v_last;
    END IF;
  END IF;

  -- Only now is what is seen the truth: this statement's snapshot is younger than the lock.
  v_now := "version_1".lockkit_clock();
  IF EXISTS (SELECT FROM "version_1".lockkit_claims AS k WHERE k.list = v_list) THEN
    woken := "version_1".lockkit_settle(v_list, v_now, p_id);
    SELECT * INTO c FROM "version_1".lockkit_claims AS k WHERE k.id = p_id AND k.list = v_list;
    IF FOUND AND c.expires > v_now THEN
      IF c.held IS NULL AND p_try = 1 THEN
        DELETE FROM "version_1".lockkit_claims AS k WHERE k.id = p_id;
        woken := coalesce(woken, '') || coalesce("version_1".lockkit_settle(v_list, v_now, p_id), '');
        outcome := 0;
        RETURN;
      END IF;
      UPDATE "version_1".lockkit_claims AS k SET client = p_client, expires = greatest(k.expires,
        v_now + CASE WHEN k.held IS NULL THEN p_wait ELSE p_hold END) WHERE k.id = p_id;
      SELECT * INTO s FROM "version_1".lockkit_stands(p_id, v_now);
      outcome := s.state;
      token := s.token; ttl := s.ttl; ahead := s.ahead; look := s.look;
      RETURN;
    ELSIF FOUND THEN
      -- It has ended, and only a fence keeps its row.
      outcome := 0;
      RETURN;
    END IF;
    SELECT count(*) AS n, coalesce(sum(k.weight), 0) AS weight,
           max(k.capacity) FILTER (WHERE k.capacity <> p_capacity) AS other
    INTO c FROM "version_1".lockkit_claims AS k WHERE k.list = v_list;
    IF c.other IS NOT NULL THEN
      outcome := 3;
      token := c.other;
      RETURN;
    END IF;
    v_sum := c.weight;
    ahead := c.n;
  ELSE
    v_sum := 0;
  END IF;

  IF v_sum + p_weight <= p_capacity THEN
    outcome := 1;
    v_held := v_now;
  ELSIF p_try = 1 THEN
    outcome := 0;
    RETURN;
  ELSE
    outcome := 2;
  END IF;
  INSERT INTO "version_1".lockkit_claims (id, list, place, token, weight, capacity, hold_ttl, wait_ttl, queued,
                         expires, held, client, identity, note)
  VALUES (p_id, v_list, v_last, v_last, p_weight, p_capacity, p_hold, p_wait, v_now,
          v_now + CASE outcome WHEN 1 THEN p_hold ELSE p_wait END, v_held, p_client, p_identity,
          p_note);
  token := v_last;
  ttl := p_hold;
  IF outcome = 2 THEN
    SELECT * INTO s FROM "version_1".lockkit_stands(p_id, v_now);
    look := s.look;
  END IF;
END $$;

-- Takes a claim out of its list. Arguments and result: `Verb::Release`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_release(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  OUT outcome bigint, OUT woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_list bigint;
  v_now  bigint;
  v_ends bigint;
BEGIN
  -- Where each statement has a snapshot of its own, the lock alone is enough, and cheaper; where they
  -- share one, only a change is noticed by those who come with an older one.
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT n.list INTO v_list FROM "version_1".lockkit_names AS n
    WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name
    FOR NO KEY UPDATE;
  ELSE
    UPDATE "version_1".lockkit_names AS n SET used = "version_1".lockkit_clock()
    WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name
    RETURNING n.list INTO v_list;
  END IF;
  IF NOT FOUND THEN
    outcome := 3;
    RETURN;
  END IF;
  v_now := "version_1".lockkit_clock();
  DELETE FROM "version_1".lockkit_claims AS k
  WHERE k.id = (SELECT o.id FROM "version_1".lockkit_claims AS o WHERE o.id = p_id AND o.list = v_list
                FOR UPDATE SKIP LOCKED)
  RETURNING k.expires INTO v_ends;
  IF NOT FOUND THEN
    -- Perhaps a transaction is fenced with it: then it has ended, and leaves when that has.
    UPDATE "version_1".lockkit_claims AS k SET expires = 0
    WHERE k.id = p_id AND k.list = v_list AND k.expires > v_now
    RETURNING v_now + 1 INTO v_ends;
  END IF;
  outcome := CASE WHEN v_ends > v_now THEN 1 ELSE 2 END;
  IF EXISTS (SELECT FROM "version_1".lockkit_claims AS k WHERE k.list = v_list) THEN
    woken := "version_1".lockkit_settle(v_list, v_now, NULL);
  ELSIF outcome = 2 THEN
    outcome := 3;
  END IF;
END $$;

-- Renews many claims. Arguments and result: `Verb::Renew`. The claims come in the order of their
-- keys, in which their lists are locked.
--
-- A claim that holds needs no lock but that of its own row: whoever takes it out locks that row as
-- well, and passes it by when it is locked. Only a list in which one of ours waits is locked as a
-- whole. Lists come first, so that nobody who holds a claim's row waits for a list.
CREATE OR REPLACE FUNCTION "version_1".lockkit_renew(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, look bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  l       record;
  v_now   bigint;
  v_woken bytea;
BEGIN
  FOR l IN
    SELECT i.list FROM "version_1".lockkit_names AS i
    WHERE i.list IN (SELECT k.list FROM "version_1".lockkit_claims AS k
                     WHERE k.id = ANY (p_ids) AND k.held IS NULL)
    ORDER BY i.namespace, i.space, i.name
  LOOP
    UPDATE "version_1".lockkit_names AS i SET used = "version_1".lockkit_clock() WHERE i.list = l.list;
    v_now := "version_1".lockkit_clock();
    v_woken := coalesce(v_woken, '') || coalesce("version_1".lockkit_settle(l.list, v_now, NULL), '');
    UPDATE "version_1".lockkit_claims AS k SET client = p_client, expires = greatest(k.expires, v_now + w.wait)
    FROM unnest(p_ids, p_waits) AS w (id, wait)
    WHERE k.id = w.id AND k.list = l.list AND k.held IS NULL AND NOT k.broken
      AND k.expires > v_now;
  END LOOP;
  v_now := "version_1".lockkit_clock();
  RETURN QUERY
  WITH asked AS (
    SELECT a.id, a.hold, a.i - 1 AS i
    FROM unnest(p_ids, p_holds) WITH ORDINALITY AS a (id, hold, i)
  ), renewed AS (
    UPDATE "version_1".lockkit_claims AS k SET expires = greatest(k.expires, v_now + a.hold)
    FROM asked AS a
    WHERE k.id = a.id AND k.held IS NOT NULL AND NOT k.broken AND k.expires > v_now
    RETURNING a.i, k.token, k.hold_ttl
  )
  SELECT r.i, 1::bigint, r.token, r.hold_ttl, NULL::bigint, NULL::bigint, NULL::bytea, v_woken
  FROM renewed AS r
  UNION ALL
  -- One that was not renewed and holds was made a holder this very moment, with a full lease.
  SELECT a.i, s.state, s.token, s.ttl, s.ahead, s.look,
         s.record, v_woken
  FROM asked AS a CROSS JOIN LATERAL "version_1".lockkit_stands(a.id, v_now) AS s
  WHERE NOT EXISTS (SELECT FROM renewed AS r WHERE r.i = a.i);
END $$;

-- As `renew`, but changes nothing and takes no lock. Arguments and result: `Verb::Look`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_look(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, look bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := "version_1".lockkit_clock();
BEGIN
  RETURN QUERY
  SELECT a.i - 1, s.state, s.token, s.ttl, s.ahead,
         -- Somebody ahead has ended: a renewal takes it out.
         CASE WHEN s.state = 2 AND EXISTS (
           SELECT FROM "version_1".lockkit_claims AS m JOIN "version_1".lockkit_claims AS k USING (list)
           WHERE m.id = a.id AND k.place < m.place AND k.expires <= v_now)
         THEN 0 ELSE s.look END,
         s.record, NULL::bytea
  FROM unnest(p_ids) WITH ORDINALITY AS a (id, i) CROSS JOIN LATERAL "version_1".lockkit_stands(a.id, v_now) AS s;
END $$;

-- Changes one claim in its place. Arguments and result: `Verb::Amend`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_amend(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_what bigint, p_value bigint)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, look bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_list bigint;
  v_now  bigint;
  v_tags bytea;
BEGIN
  UPDATE "version_1".lockkit_names AS i
  SET used = "version_1".lockkit_clock(), last = CASE p_what WHEN 2 THEN
    -- Tokens are raised only for a claim that is there.
    CASE WHEN EXISTS (SELECT FROM "version_1".lockkit_claims AS k WHERE k.id = p_id AND k.list = i.list
                      AND k.expires > "version_1".lockkit_clock() AND NOT k.broken)
    THEN greatest(i.last, p_value) ELSE i.last END ELSE i.last END
  WHERE i.namespace = p_namespace AND i.space = p_space AND i.name = p_name
  RETURNING i.list INTO v_list;
  v_now := "version_1".lockkit_clock();
  v_tags := "version_1".lockkit_settle(v_list, v_now, p_id);
  UPDATE "version_1".lockkit_claims AS k SET
    expires  = CASE WHEN p_what = 0 AND k.held IS NOT NULL THEN v_now + p_value
                    ELSE k.expires END,
    weight   = CASE p_what WHEN 1 THEN 1 ELSE k.weight END,
    token    = CASE p_what WHEN 2 THEN greatest(k.token, p_value) ELSE k.token END
  WHERE k.id = p_id AND k.list = v_list AND k.expires > v_now AND NOT k.broken;
  IF FOUND AND p_what = 1 THEN
    v_tags := coalesce(v_tags, '') || coalesce("version_1".lockkit_settle(v_list, v_now, p_id), '');
  END IF;
  RETURN QUERY SELECT 0::bigint, s.state, s.token, s.ttl, s.ahead, s.look, s.record, v_tags
  FROM "version_1".lockkit_stands(p_id, v_now) AS s;
END $$;

-- Breaks the claim that has this token. Arguments and result: `Verb::Break`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_break(p_namespace bytea, p_space bigint, p_name bytea,
  p_token bigint, p_force bigint, p_record bytea, p_keep bigint,
  OUT outcome bigint, OUT woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_list bigint;
  v_now  bigint;
  c      record;
BEGIN
  outcome := 0;
  UPDATE "version_1".lockkit_names AS n SET used = "version_1".lockkit_clock()
  WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name
  RETURNING n.list INTO v_list;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  v_now := "version_1".lockkit_clock();
  woken := "version_1".lockkit_settle(v_list, v_now, NULL);
  SELECT * INTO c FROM "version_1".lockkit_claims AS k
  WHERE k.list = v_list AND k.token = p_token AND k.expires > v_now;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  outcome := 1;
  INSERT INTO "version_1".lockkit_breaks (list, id, record, expires)
  VALUES (v_list, c.id, p_record, v_now + greatest(p_keep, c.hold_ttl, c.wait_ttl));
  IF p_force = 1 THEN
    UPDATE "version_1".lockkit_claims AS k SET expires = 0 WHERE k.id = c.id;
    woken := coalesce(woken, '') || coalesce("version_1".lockkit_settle(v_list, v_now, NULL), '');
  ELSE
    UPDATE "version_1".lockkit_claims AS k SET broken = true WHERE k.id = c.id;
  END IF;
END $$;

-- What people and programs may see of a list: without ids, and times as stretches from now.
CREATE OR REPLACE FUNCTION "version_1".lockkit_shown(p_lists bigint[], p_empty boolean)
RETURNS TABLE (namespace bytea, space bigint, name bytea, token bigint, weight bigint,
  capacity bigint, hold_ttl bigint, queued bigint, remaining bigint, held bigint, broken bigint,
  identity bytea, note bytea, record bytea) LANGUAGE sql STABLE AS $$
  SELECT n.namespace, n.space::bigint, n.name, c.token, c.weight, c.capacity, c.hold_ttl,
         t.now - c.queued, c.expires - t.now, t.now - c.held, c.broken::int::bigint, c.identity,
         c.note,
         (SELECT b.record FROM "version_1".lockkit_breaks AS b WHERE b.list = n.list ORDER BY b.n DESC LIMIT 1)
  FROM (SELECT "version_1".lockkit_clock() AS now OFFSET 0) AS t
  CROSS JOIN "version_1".lockkit_names AS n
  LEFT JOIN "version_1".lockkit_claims AS c ON c.list = n.list AND c.expires > t.now
  WHERE n.list = ANY (p_lists) AND (p_empty OR c.token IS NOT NULL)
  ORDER BY n.space, n.name, c.place
$$;

-- One list. Arguments and result: `Verb::Inspect`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_inspect(p_namespace bytea, p_space bigint, p_name bytea)
RETURNS TABLE (namespace bytea, space bigint, name bytea, token bigint, weight bigint,
  capacity bigint, hold_ttl bigint, queued bigint, remaining bigint, held bigint, broken bigint,
  identity bytea, note bytea, record bytea) LANGUAGE sql STABLE AS $$
  SELECT * FROM "version_1".lockkit_shown(ARRAY(SELECT n.list FROM "version_1".lockkit_names AS n
    WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name), true)
$$;

-- Some lists in use. Arguments and result: `Verb::List`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_list(p_namespace bytea, p_space bigint, p_prefix bytea,
  p_after_space bigint, p_after bytea, p_limit bigint)
RETURNS TABLE (namespace bytea, space bigint, name bytea, token bigint, weight bigint,
  capacity bigint, hold_ttl bigint, queued bigint, remaining bigint, held bigint, broken bigint,
  identity bytea, note bytea, record bytea) LANGUAGE sql STABLE AS $$
  SELECT * FROM "version_1".lockkit_shown(ARRAY(SELECT n.list FROM "version_1".lockkit_names AS n
    WHERE n.namespace = p_namespace AND (p_space < 0 OR n.space = p_space)
      AND n.name >= p_prefix AND substr(n.name, 1, length(p_prefix)) = p_prefix
      AND (n.space, n.name) > (p_after_space, p_after)
      AND EXISTS (SELECT FROM "version_1".lockkit_claims AS c WHERE c.list = n.list AND c.expires > "version_1".lockkit_clock())
    ORDER BY n.space, n.name LIMIT p_limit), false)
$$;

-- What an operator should know. Result: `Verb::Health`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_health(OUT version bigint, OUT server bytea, OUT writes bigint,
  OUT waits bigint) LANGUAGE sql VOLATILE AS $$
  SELECT m.version, convert_to('PostgreSQL ' || current_setting('server_version'), 'UTF8'),
         (NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off')::int::bigint,
         (current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on')::int::bigint
  FROM "version_1".lockkit_meta AS m
$$;

-- A register's value. Arguments and result: `Verb::Load`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_load(p_namespace bytea, p_name bytea)
RETURNS TABLE (value bytea, version bigint, highest bigint) LANGUAGE sql VOLATILE AS $$
  SELECT r.value, r.version, r.highest FROM "version_1".lockkit_registers AS r
  WHERE r.namespace = p_namespace AND r.name = p_name AND r.value IS NOT NULL
    AND (r.expires IS NULL OR r.expires > "version_1".lockkit_clock())
$$;

-- Writes a register, or deletes its value. Arguments and result: `Verb::Store`.
-- Versions are never less than the clock, so that they grow when a row was removed.
CREATE OR REPLACE FUNCTION "version_1".lockkit_store(p_namespace bytea, p_name bytea, p_value bytea,
  p_expect bigint, p_expected bigint, p_token bigint, p_write bytea, p_ttl bigint,
  OUT outcome bigint, OUT number bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  r       record;
  v_now   bigint;
  v_there boolean;
  v_ends  bigint;
BEGIN
  -- A row that is not there yet is made without a value, so that there is one to lock. Its write
  -- id is nobody's.
  UPDATE "version_1".lockkit_registers AS k SET version = k.version
  WHERE k.namespace = p_namespace AND k.name = p_name;
  IF NOT FOUND THEN
    INSERT INTO "version_1".lockkit_registers AS k (namespace, name, version, write_id, purge_at)
    VALUES (p_namespace, p_name, 0, '', "version_1".lockkit_clock() + 600000000)
    ON CONFLICT (namespace, name) DO UPDATE SET version = k.version;
  END IF;
  SELECT * INTO r FROM "version_1".lockkit_registers AS k WHERE k.namespace = p_namespace AND k.name = p_name;
  v_now := "version_1".lockkit_clock();
  v_there := r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > v_now);
  IF r.write_id = p_write THEN
    outcome := 1;
    number := r.version;
  ELSIF p_token > 0 AND p_token < r.highest THEN
    outcome := 2;
    number := r.highest;
  ELSIF p_expect = 1 AND v_there OR p_expect = 2 AND (NOT v_there OR r.version <> p_expected) THEN
    outcome := 0;
  ELSE
    outcome := 1;
    number := greatest(r.version + 1, v_now);
    v_ends := CASE WHEN p_value IS NOT NULL AND p_ttl > 0 THEN v_now + p_ttl END;
    UPDATE "version_1".lockkit_registers AS k SET value = p_value, version = number, write_id = p_write,
      expires = v_ends, highest = greatest(k.highest, nullif(p_token, 0)),
      -- What has, or had, a token is remembered for good.
      purge_at = CASE WHEN k.highest IS NOT NULL OR p_token > 0 THEN NULL
                      WHEN p_value IS NULL THEN v_now + 600000000
                      ELSE v_ends + 600000000 END
    WHERE k.namespace = p_namespace AND k.name = p_name;
  END IF;
END $$;

-- What is added to the tokens of a namespace. `Verb::Base`, `Verb::RaiseBase`.
CREATE OR REPLACE FUNCTION "version_1".lockkit_base(p_namespace bytea) RETURNS TABLE (base bigint)
LANGUAGE sql STABLE AS
$$ SELECT b.base FROM "version_1".lockkit_bases AS b WHERE b.namespace = p_namespace $$;

CREATE OR REPLACE FUNCTION "version_1".lockkit_raise_base(p_namespace bytea, p_base bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
  INSERT INTO "version_1".lockkit_bases AS b (namespace, base) VALUES (p_namespace, p_base)
  ON CONFLICT (namespace) DO UPDATE SET base = greatest(b.base, excluded.base) RETURNING b.base
$$;

-- What stands for a claim that a transaction is to be fenced with: its row is locked until that
-- transaction has ended, in a way that lets it be renewed, but not be taken out. Whoever would give the
-- lock to somebody else has to take it out first.
-- Result: how long its lease still is; NULL when it does not hold.
CREATE OR REPLACE FUNCTION "version_1".lockkit_fence(p_id bytea) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ends bigint;
BEGIN
  SELECT k.expires INTO v_ends FROM "version_1".lockkit_claims AS k
  WHERE k.id = p_id AND k.held IS NOT NULL AND NOT k.broken
  FOR KEY SHARE;
  RETURN CASE WHEN v_ends > "version_1".lockkit_clock() THEN v_ends - "version_1".lockkit_clock() END;
END $$;

-- Removes what nobody visits any more, `p_bite` rows of each kind at most: lists that were not used
-- for a day (an ended claim in them goes with them), records of breaks, values that have ended. What
-- somebody uses at this moment is passed by.
CREATE OR REPLACE FUNCTION "version_1".lockkit_sweep(p_bite bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now   bigint := "version_1".lockkit_clock();
  v_lists bigint[];
  v_list  bigint;
BEGIN
  -- Claims that ended in lists which nobody visits.
  FOR v_list IN
    SELECT DISTINCT c.list FROM "version_1".lockkit_claims AS c WHERE c.expires <= v_now LIMIT p_bite
  LOOP
    PERFORM FROM "version_1".lockkit_names AS n WHERE n.list = v_list FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE "version_1".lockkit_names AS n SET used = n.used WHERE n.list = v_list;
      PERFORM "version_1".lockkit_settle(v_list, "version_1".lockkit_clock(), NULL);
    END IF;
  END LOOP;
  SELECT array_agg(o.list) INTO v_lists FROM (
    SELECT n.list FROM "version_1".lockkit_names AS n
    WHERE n.used < v_now - 86400000000
      AND NOT EXISTS (SELECT FROM "version_1".lockkit_claims AS c WHERE c.list = n.list)
    LIMIT p_bite FOR UPDATE SKIP LOCKED) AS o;
  IF v_lists IS NOT NULL THEN
    -- A claim may have come between the look and the lock; from here on none can.
    SELECT array_agg(n.list) INTO v_lists FROM "version_1".lockkit_names AS n
    WHERE n.list = ANY (v_lists)
      AND NOT EXISTS (SELECT FROM "version_1".lockkit_claims AS c WHERE c.list = n.list);
    UPDATE "version_1".lockkit_meta SET floor = greatest(floor,
      (SELECT max(n.last) FROM "version_1".lockkit_names AS n WHERE n.list = ANY (v_lists)));
    DELETE FROM "version_1".lockkit_breaks AS b WHERE b.list = ANY (v_lists);
    DELETE FROM "version_1".lockkit_names AS n WHERE n.list = ANY (v_lists);
  END IF;
  DELETE FROM "version_1".lockkit_breaks AS b WHERE b.n IN (
    SELECT o.n FROM "version_1".lockkit_breaks AS o WHERE o.expires <= v_now
      AND NOT EXISTS (SELECT FROM "version_1".lockkit_claims AS c WHERE c.list = o.list)
    LIMIT p_bite FOR UPDATE SKIP LOCKED);
  DELETE FROM "version_1".lockkit_registers AS r WHERE (r.namespace, r.name) IN (
    SELECT o.namespace, o.name FROM "version_1".lockkit_registers AS o WHERE o.purge_at <= v_now
    LIMIT p_bite FOR UPDATE SKIP LOCKED);
  RETURN 0;
END $$;

-- The version comes last: whoever finds it finds everything.
INSERT INTO "version_1".lockkit_meta (version, floor) VALUES (1, 0)
ON CONFLICT (one) DO UPDATE SET version = greatest("version_1".lockkit_meta.version, excluded.version);
COMMIT;
