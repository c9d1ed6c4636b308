-- Functions of more than an expression are in PL/pgSQL: what calls one of LANGUAGE sql plans its statements
-- again in each query. And what requests call sets `enable_seqscan`, since plans outlive the size that the
-- tables had when they were made; and `jit`, since what has no index then counts as so costly that it would be
-- compiled, which takes a tenth of a second.

-- What stands for a claim where others can see it.
CREATE OR REPLACE FUNCTION {p}tag(p_id bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT substr(sha256(p_id), 1, 8) $$;

-- Notifies the client of a claim: `g` it holds, `l` it is to poll. A transaction that was failed for its
-- messages, as the server's queue is full, is sent again with `lockkit.mute`, and sends none.
CREATE OR REPLACE FUNCTION {p}notify(p_client bytea, p_word text, p_id bytea, p_token bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF current_setting('lockkit.mute', true) IS DISTINCT FROM 'on' THEN
    PERFORM pg_notify('lockkit_' || encode(p_client, 'hex'),
                      p_word || ' ' || encode({p}tag(p_id), 'hex') || ' ' || p_token);
  END IF;
END $$;

-- Locks a queue by changing its row, and makes it one of `claims`, so that an operation has one place to look
-- at. The claim that is moved holds, so it waits for no notification.
-- Result: the queue; NULL when the name has none.
CREATE OR REPLACE FUNCTION {p}lock_queue(p_namespace bytea, p_space bigint, p_name bytea)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_queue bigint;
  v_id   bytea;
BEGIN
  UPDATE {p}names AS n SET has_claim_rows = true
  WHERE n.namespace = p_namespace AND n.space = p_space::smallint AND n.name = p_name
  RETURNING n.queue, n.id INTO v_queue, v_id;
  IF v_id IS NOT NULL THEN
    INSERT INTO {p}claims (id, queue, sequence, token, weight, capacity, hold_ttl, wait_ttl, queued,
                           expires, held, client, identity, note, set_at)
    SELECT n.id, n.queue, n.last, n.last, n.weight, n.capacity, n.hold_ttl, n.wait_ttl, n.used,
           n.expires, n.used, '', n.identity, n.note, n.set_at
    FROM {p}names AS n WHERE n.queue = v_queue AND n.expires > {p}clock();
    UPDATE {p}names AS n SET id = NULL, expires = 0 WHERE n.queue = v_queue;
  END IF;
  RETURN v_queue;
END $$;

-- Clears `has_claim_rows` of a queue without claims, unless it has a limit. Its row is locked by the
-- caller.
CREATE OR REPLACE FUNCTION {p}end_claim_rows(p_queue bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM {p}claims AS k WHERE k.queue = p_queue) THEN
    UPDATE {p}names AS n SET has_claim_rows = false
    WHERE n.queue = p_queue AND n.has_claim_rows AND n.fixed_limit IS NULL;
  END IF;
END $$;

-- Takes out whose lease has ended, and lets those begin to hold who now do. Leases that were set while
-- the clock was ahead count from now.
-- The row of the queue is locked by the caller. A claim with which a transaction is fenced is locked,
-- and stays until that transaction has ended; it is not waited for here.
-- Result: tags and tokens of the new holders. They are notified, but for the claims of `p_client`, which
-- learns it from the answer to its request, and for `p_mine`. One that was broken while it waited keeps its lease and
-- has the token 0, and its client is to poll: it holds no lock, but keeps others out until that lease ends.
CREATE OR REPLACE FUNCTION {p}promote(p_queue bigint, p_now bigint, p_mine bytea, p_client bytea)
RETURNS bytea LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c      record;
  v_sum  bigint := 0;
  v_hold bigint;
  v_token bigint;
  v_tags bytea;
  v_over bytea[];
  v_back boolean;
  v_now  bigint;
BEGIN
  SELECT array_agg(k.id) FILTER (WHERE k.expires <= p_now), bool_or(k.set_at > p_now)
  INTO v_over, v_back FROM {p}claims AS k WHERE k.queue = p_queue;
  IF v_over IS NOT NULL THEN
    DELETE FROM {p}claims WHERE id IN (
      SELECT id FROM {p}claims WHERE id = ANY (v_over) AND expires <= p_now FOR UPDATE SKIP LOCKED);
  END IF;
  IF v_back THEN
    -- Compared with a time that is younger than what is seen: renewals do not wait for the queue, and one
    -- may have come behind `p_now`. One that has a row locked does the same.
    v_now := {p}clock();
    UPDATE {p}claims SET expires = expires - set_at + v_now, set_at = v_now WHERE id IN (
      SELECT id FROM {p}claims WHERE queue = p_queue AND set_at > v_now FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  FOR c IN SELECT * FROM {p}claims WHERE queue = p_queue ORDER BY sequence LOOP
    v_sum := v_sum + c.weight;
    -- Who holds goes on, also under a lower limit.
    IF v_sum > c.capacity AND c.held IS NULL THEN
      -- The next waiter asks by itself, with its renewals. When the one before it may end sooner
      -- than that, it is notified.
      IF v_hold * 3 < c.wait_ttl AND c.id IS DISTINCT FROM p_mine THEN
        PERFORM {p}notify(c.client, 'l', c.id, 0);
      END IF;
      EXIT;
    END IF;
    CONTINUE WHEN c.held IS NOT NULL OR c.expires <= p_now;
    UPDATE {p}claims SET held = p_now, set_at = p_now,
      expires = CASE WHEN broken THEN expires ELSE greatest(expires, p_now + hold_ttl) END
    WHERE id = c.id;
    v_token := CASE WHEN c.broken THEN 0 ELSE c.token END;
    v_tags := coalesce(v_tags, '') || {p}tag(c.id) || int8send(v_token);
    IF c.id IS DISTINCT FROM p_mine THEN
      v_hold := CASE WHEN c.broken THEN c.expires - p_now ELSE c.hold_ttl END;
      IF c.client IS DISTINCT FROM p_client THEN
        PERFORM {p}notify(c.client, CASE WHEN c.broken THEN 'l' ELSE 'g' END, c.id, v_token);
      END IF;
    END IF;
  END LOOP;
  RETURN v_tags;
END $$;

-- How a claim stands. Changes nothing.
-- Result: state (0 not in its queue, 1 holds, 2 waits, 3 broken), token, ttl, how many are ahead, after how
-- long to ask again, record of its break. The first to wait polls when any lease ends, the others
-- when that of the one right before them does; a lease that has ended and still stands is that of a
-- fence. One that no claim is ahead of waits for a higher limit, of which it is notified.
CREATE OR REPLACE FUNCTION {p}claim_state(p_id bytea, p_now bigint,
  OUT state bigint, OUT token bigint, OUT ttl bigint, OUT ahead bigint, OUT next_poll bigint,
  OUT record bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c       record;
  v_waits boolean;
BEGIN
  SELECT * INTO c FROM {p}claims AS k WHERE k.id = p_id;
  IF NOT FOUND OR c.broken OR c.expires <= p_now THEN
    SELECT b.record INTO record FROM {p}breaks AS b WHERE b.id = p_id ORDER BY n DESC LIMIT 1;
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
  SELECT count(*) INTO ahead FROM {p}claims AS k WHERE k.queue = c.queue AND k.sequence < c.sequence;
  SELECT k.held IS NULL, k.expires INTO v_waits, next_poll
  FROM {p}claims AS k WHERE k.queue = c.queue AND k.sequence < c.sequence ORDER BY k.sequence DESC LIMIT 1;
  IF NOT v_waits THEN
    SELECT min(k.expires) INTO next_poll
    FROM {p}claims AS k WHERE k.queue = c.queue AND k.sequence < c.sequence;
  END IF;
  next_poll := next_poll - p_now;
  next_poll := CASE WHEN next_poll > 0 THEN next_poll WHEN ahead > 0 THEN 50000
               WHEN c.weight > c.capacity THEN c.wait_ttl ELSE 0 END;
END $$;

