-- Puts a claim at the end of its queue, as a row of `claims`. Arguments and result: `StatementId::Acquire`.
CREATE OR REPLACE FUNCTION {p}acquire(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_weight bigint, p_capacity bigint, p_hold bigint, p_wait bigint, p_client bytea,
  p_identity bytea, p_note bytea, p_try bigint,
  OUT outcome bigint, OUT token bigint, OUT ttl bigint, OUT ahead bigint, OUT next_poll bigint,
  OUT woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_queue  bigint;
  v_last  bigint;
  v_now   bigint;
  v_sum   bigint;
  v_held  bigint;
  v_fixed_limit bigint;
  v_new   boolean := false;
  l       record;
  c       record;
  s       record;
BEGIN
  -- A try reads first: a lock that another claim holds is seen without a lock, and nothing is written
  -- that a commit would wait for. (Tries of a held lock with `fsync` on, in turns on a busy machine: 3
  -- times as many from one client as without this, 8 times as many from eight.)
  IF p_try = 1 THEN
    v_now := {p}clock();
    SELECT n.queue, n.has_claim_rows, n.id, n.weight, n.capacity, n.expires, n.fixed_limit, n.set_at INTO l
    FROM {p}names AS n WHERE n.namespace = p_namespace AND n.space = p_space::smallint AND n.name = p_name;
    IF FOUND AND l.has_claim_rows THEN
      SELECT sum(k.weight) AS weight,
             bool_or(k.id = p_id OR coalesce(l.fixed_limit, k.capacity) <> p_capacity OR k.set_at > v_now)
               AS other
      INTO c FROM {p}claims AS k WHERE k.queue = l.queue AND k.expires > v_now;
      IF c.weight + p_weight > p_capacity AND NOT c.other THEN
        outcome := 0;
        RETURN;
      END IF;
    ELSIF l.expires > v_now AND l.set_at <= v_now AND l.id <> p_id AND l.capacity = p_capacity
      AND l.weight + p_weight > p_capacity THEN
      outcome := 0;
      RETURN;
    END IF;
  END IF;

  -- Lock the queue.
  LOOP
    v_queue := {p}lock_queue(p_namespace, p_space, p_name);
    EXIT WHEN v_queue IS NOT NULL;
    v_new := true;
    INSERT INTO {p}names (namespace, space, name, last, used)
    VALUES (p_namespace, p_space::smallint, p_name, 0, {p}clock())
    ON CONFLICT (namespace, space, name) DO NOTHING;
  END LOOP;

  -- Only now is what is seen the truth: this statement's snapshot is younger than the lock.
  v_now := {p}clock();
  IF p_space = 1 THEN
    SELECT n.fixed_limit INTO v_fixed_limit FROM {p}names AS n WHERE n.queue = v_queue;
  END IF;
  IF EXISTS (SELECT FROM {p}claims AS k WHERE k.queue = v_queue) THEN
    woken := {p}promote(v_queue, v_now, p_id, p_client);
    SELECT * INTO c FROM {p}claims AS k WHERE k.id = p_id AND k.queue = v_queue;
    IF FOUND AND c.expires > v_now THEN
      IF c.held IS NULL AND p_try = 1 THEN
        DELETE FROM {p}claims AS k WHERE k.id = p_id;
        woken := coalesce(woken, '') || coalesce({p}promote(v_queue, v_now, p_id, p_client), '');
        outcome := 0;
        RETURN;
      END IF;
      IF c.broken THEN
        outcome := 4;
        RETURN;
      END IF;
      UPDATE {p}claims AS k SET client = p_client, set_at = v_now,
        expires = greatest({p}ends(k.expires, k.set_at, v_now),
          v_now + CASE WHEN k.held IS NULL THEN p_wait ELSE p_hold END) WHERE k.id = p_id;
      SELECT * INTO s FROM {p}claim_state(p_id, v_now);
      outcome := s.state;
      token := s.token; ttl := s.ttl; ahead := s.ahead; next_poll := s.next_poll;
      RETURN;
    ELSIF FOUND THEN
      -- It has ended, and only a fence keeps its row.
      outcome := 0;
      RETURN;
    END IF;
    SELECT count(*) AS n, coalesce(sum(k.weight), 0) AS weight,
           max(k.capacity) AS capacity
    INTO c FROM {p}claims AS k WHERE k.queue = v_queue;
    v_fixed_limit := coalesce(v_fixed_limit, c.capacity);
    v_sum := c.weight;
    ahead := c.n;
  ELSE
    v_sum := 0;
    ahead := 0;
  END IF;
  IF v_fixed_limit <> p_capacity THEN
    outcome := 3;
    token := v_fixed_limit;
    RETURN;
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
  -- The number is taken under the queue's lock: never less than the clock, so that numbers grow even if
  -- the row is lost. It may have been there and was removed, with numbers that the clock has not
  -- reached.
  UPDATE {p}names AS n SET used = v_now, last = greatest(n.last + 1, v_now,
    CASE WHEN v_new THEN (SELECT floor + 1 FROM {p}meta) END)
  WHERE n.queue = v_queue RETURNING n.last INTO v_last;
  INSERT INTO {p}claims (id, queue, sequence, token, weight, capacity, hold_ttl, wait_ttl, queued,
                         expires, held, client, identity, note, set_at)
  VALUES (p_id, v_queue, v_last, v_last, p_weight, p_capacity, p_hold, p_wait, v_now,
          v_now + CASE outcome WHEN 1 THEN p_hold ELSE p_wait END, v_held, p_client, p_identity,
          p_note, v_now);
  token := v_last;
  ttl := p_hold;
  IF outcome = 2 THEN
    SELECT * INTO s FROM {p}claim_state(p_id, v_now);
    next_poll := s.next_poll;
  END IF;
END $$;


-- What `fast_acquire.sql` falls back to: makes the row of a name with the claim in it, or does the whole
-- work. Result: that of `acquire` as bytes, 8 for each number, NULL being 0; then the new holders.
CREATE OR REPLACE FUNCTION {p}acquire_packed(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_weight bigint, p_capacity bigint, p_hold bigint, p_wait bigint, p_client bytea,
  p_identity bytea, p_note bytea, p_try bigint) RETURNS bytea LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_last bigint;
  v_queue bigint;
  a      record;
BEGIN
  IF p_weight <= p_capacity
    AND NOT EXISTS (SELECT FROM {p}names AS n WHERE n.namespace = p_namespace
                    AND n.space = p_space::smallint AND n.name = p_name) THEN
    INSERT INTO {p}names AS n (namespace, space, name, last, used, has_claim_rows, expires, id, weight,
                               capacity, hold_ttl, wait_ttl, identity, note, set_at)
    VALUES (p_namespace, p_space::smallint, p_name, {p}clock(), {p}clock(), false,
            {p}clock() + p_hold, p_id, p_weight, p_capacity, p_hold, p_wait, p_identity, p_note,
            {p}clock())
    ON CONFLICT (namespace, space, name) DO NOTHING RETURNING n.queue, n.last INTO v_queue, v_last;
    IF FOUND THEN
      -- The row may have been there and was removed, with numbers that the clock has not reached.
      IF v_last <= (SELECT floor FROM {p}meta) THEN
        UPDATE {p}names AS n SET last = (SELECT floor + 1 FROM {p}meta) WHERE n.queue = v_queue
        RETURNING n.last INTO v_last;
      END IF;
      RETURN int8send(1) || int8send(v_last) || int8send(p_hold) || int8send(0) || int8send(0);
    END IF;
  END IF;
  SELECT * INTO a FROM {p}acquire(p_namespace, p_space, p_name, p_id, p_weight, p_capacity, p_hold,
                                  p_wait, p_client, p_identity, p_note, p_try);
  RETURN int8send(a.outcome) || int8send(coalesce(a.token, 0)) || int8send(coalesce(a.ttl, 0))
    || int8send(coalesce(a.ahead, 0)) || int8send(coalesce(a.next_poll, 0)) || coalesce(a.woken, '');
END $$;
