-- Carries out many releases and acquires. Arguments and result: `StatementId::Submit`. Those that concern no other
-- claim cost a few statements for all of them, the others one call each.
--
-- Never waits for a row, since it has others in hand: what is locked is left out. (Two that make the same
-- names do so in the order of the keys.) What is read behind the first statement is the truth: each
-- statement has a snapshot of its own, younger than the locks.
CREATE OR REPLACE FUNCTION {p}submit(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_kinds bigint[], p_weights bigint[], p_capacities bigint[], p_holds bigint[],
  p_waits bigint[], p_identities bytea[], p_notes bytea[], p_client bytea)
RETURNS TABLE (n bigint, outcome bigint, token bigint, ttl bigint, ahead bigint, next_poll bigint,
  woken bytea) LANGUAGE plpgsql VOLATILE
  -- Plans outlive the size that the tables had when they were made. What has no index then counts as so
  -- costly that it would be compiled, which takes a tenth of a second.
  SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_queues bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_ids)]);  -- of each operation, if locked
  v_done  bigint[]; -- the operations that are answered
  v_releases  bigint := cardinality(array_positions(p_kinds, 0::bigint));  -- how many are releases
  v_floor bigint;
  a       record;
  s       record;
BEGIN
  FOR s IN
    SELECT q.i, m.queue
    FROM unnest(p_namespaces, p_spaces, p_names) WITH ORDINALITY AS q (namespace, space, name, i)
    JOIN {p}names AS m
      ON m.namespace = q.namespace AND m.space = q.space::smallint AND m.name = q.name
    FOR NO KEY UPDATE OF m SKIP LOCKED
  LOOP
    v_queues[s.i] := s.queue;
  END LOOP;

  -- Releases: of a claim that is alone.
  IF v_releases > 0 THEN
    WITH freed AS (
      UPDATE {p}names AS m SET id = NULL, expires = 0
      FROM unnest(v_queues, p_ids, p_kinds) WITH ORDINALITY AS q (queue, id, kind, i)
      WHERE q.kind = 0 AND m.queue = q.queue AND m.id = q.id AND m.expires > {p}clock()
      RETURNING q.i
    )
    SELECT array_agg(f.i) INTO v_done FROM freed AS f;
    RETURN QUERY SELECT d.i - 1, 1::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                        NULL::bytea FROM unnest(v_done) AS d (i);
    -- Others.
    FOR s IN
      SELECT * FROM unnest(v_queues, p_namespaces, p_spaces, p_names, p_ids, p_kinds)
        WITH ORDINALITY AS q (queue, namespace, space, name, id, kind, i)
      WHERE q.kind = 0 AND (v_done IS NULL OR NOT q.i = ANY (v_done)) ORDER BY q.i
    LOOP
      n := s.i - 1;
      token := NULL; ttl := NULL; ahead := NULL; next_poll := NULL; woken := NULL;
      IF s.queue IS NULL THEN
        outcome := CASE WHEN EXISTS (
          SELECT FROM {p}names AS m
          WHERE m.namespace = s.namespace AND m.space = s.space::smallint AND m.name = s.name)
          THEN 9 ELSE 3 END;
      ELSIF {p}is_row_locked(s.id) THEN
        outcome := 9;
      ELSE
        SELECT r.outcome, r.woken INTO outcome, woken
        FROM {p}release(s.namespace, s.space, s.name, s.id, p_client) AS r;
      END IF;
      RETURN NEXT;
    END LOOP;
  END IF;

  IF v_releases = cardinality(p_kinds) THEN
    RETURN;
  END IF;
  -- Acquires: the first of an empty queue.
  WITH taken AS (
    UPDATE {p}names AS m
    SET used = {p}clock(), last = greatest(m.last + 1, {p}clock()), expires = {p}clock() + q.hold,
        set_at = {p}clock(), id = q.id, weight = q.weight, capacity = q.capacity, hold_ttl = q.hold,
        wait_ttl = q.wait, identity = q.identity, note = q.note
    FROM (
      SELECT DISTINCT ON (p.queue) *
      FROM unnest(v_queues, p_ids, p_kinds, p_weights, p_capacities, p_holds, p_waits, p_identities,
                  p_notes) WITH ORDINALITY
        AS p (queue, id, kind, weight, capacity, hold, wait, identity, note, i)
      WHERE p.kind > 0 AND p.queue IS NOT NULL ORDER BY p.queue, p.i) AS q
    WHERE m.queue = q.queue AND NOT m.has_claim_rows AND m.expires <= {p}clock() AND q.weight <= q.capacity
    RETURNING q.i, m.last, q.hold
  )
  SELECT array_agg(t.i) AS i, array_agg(t.last) AS last, array_agg(t.hold) AS hold INTO a
  FROM taken AS t;
  v_done := a.i;
  RETURN QUERY SELECT d.i - 1, 1::bigint, d.last, d.hold, 0::bigint, NULL::bigint, NULL::bytea
  FROM unnest(a.i, a.last, a.hold) AS d (i, last, hold);
  IF v_releases + cardinality(v_done) = cardinality(p_ids) THEN
    RETURN;
  END IF;

  -- Names that are not there yet.
  IF array_position(v_queues, NULL) IS NOT NULL THEN
    WITH made AS (
      INSERT INTO {p}names AS m (namespace, space, name, last, used, has_claim_rows, expires, id, weight,
                                 capacity, hold_ttl, wait_ttl, identity, note, set_at)
      SELECT q.namespace, q.space::smallint, q.name, {p}clock(), {p}clock(), false,
             {p}clock() + q.hold, q.id, q.weight, q.capacity, q.hold, q.wait, q.identity, q.note,
             {p}clock()
      FROM unnest(v_queues, p_namespaces, p_spaces, p_names, p_ids, p_kinds, p_weights, p_capacities,
                  p_holds, p_waits, p_identities, p_notes) WITH ORDINALITY
        AS q (queue, namespace, space, name, id, kind, weight, capacity, hold, wait, identity, note, i)
      WHERE q.kind > 0 AND q.weight <= q.capacity AND q.queue IS NULL
        AND NOT EXISTS (
          SELECT FROM {p}names AS o
          WHERE o.namespace = q.namespace AND o.space = q.space::smallint AND o.name = q.name)
      ORDER BY q.namespace, q.space, q.name, q.i
      ON CONFLICT (namespace, space, name) DO NOTHING
      RETURNING m.id, m.queue, m.last, m.hold_ttl
    )
    SELECT array_agg(q.i) AS i, array_agg(e.queue) AS queue, array_agg(e.last) AS last,
           array_agg(e.hold_ttl) AS hold, min(e.last) AS least INTO a
    FROM made AS e JOIN unnest(p_ids) WITH ORDINALITY AS q (id, i) USING (id);
    IF a.i IS NOT NULL THEN
      -- Rows may have been there and were removed, with numbers that the clock has not reached.
      SELECT f.floor INTO v_floor FROM {p}meta AS f WHERE f.one;
      IF a.least <= v_floor THEN
        UPDATE {p}names AS m SET last = v_floor + 1 WHERE m.queue = ANY (a.queue) AND m.last <= v_floor;
      END IF;
      RETURN QUERY SELECT d.i - 1, 1::bigint, greatest(d.last, v_floor + 1), d.hold, 0::bigint,
                          NULL::bigint, NULL::bytea
      FROM unnest(a.i, a.last, a.hold) AS d (i, last, hold);
      v_done := coalesce(v_done, ARRAY[]::bigint[]) || a.i;
      IF v_releases + cardinality(v_done) = cardinality(p_ids) THEN
        RETURN;
      END IF;
    END IF;
  END IF;

  -- Others.
  FOR s IN
    SELECT * FROM unnest(v_queues, p_namespaces, p_spaces, p_names, p_ids, p_kinds, p_weights,
                         p_capacities, p_holds, p_waits, p_identities, p_notes) WITH ORDINALITY
      AS q (queue, namespace, space, name, id, kind, weight, capacity, hold, wait, identity, note, i)
    WHERE q.kind > 0 AND (v_done IS NULL OR NOT q.i = ANY (v_done)) ORDER BY q.i
  LOOP
    n := s.i - 1;
    token := NULL; ttl := NULL; ahead := NULL; next_poll := NULL; woken := NULL;
    IF s.queue IS NULL OR {p}is_row_locked(s.id) THEN
      outcome := 9;
    ELSE
      SELECT r.outcome, r.token, r.ttl, r.ahead, r.next_poll, r.woken
      INTO outcome, token, ttl, ahead, next_poll, woken
      FROM {p}acquire(s.namespace, s.space, s.name, s.id, s.weight, s.capacity, s.hold, s.wait,
                      p_client, s.identity, s.note, (s.kind = 2)::int::bigint) AS r;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Whether a claim's row is locked, by a renewal of holders or by a fence.
CREATE OR REPLACE FUNCTION {p}is_row_locked(p_id bytea) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM {p}claims AS k WHERE k.id = p_id FOR UPDATE SKIP LOCKED;
  RETURN NOT FOUND AND EXISTS (SELECT FROM {p}claims AS k WHERE k.id = p_id);
END $$;
