-- Renews many claims. Arguments and result: `StatementId::Renew`. The claims come in the order of their
-- keys, in which their queues are locked.
--
-- A claim that holds needs no lock but that of its own row: an operation that takes it out locks that row as
-- well, and passes it by when it is locked. Only a queue in which one of ours waits is locked as a
-- whole. Queues come first, so that no transaction that has a claim's row waits for a queue. A claim that is
-- alone is renewed in its queue's row. It may be moved to `claims` at any moment, and never back: so
-- these come first too, by a statement of their own, and the next one sees what was moved.
--
-- Of several claims, one whose row another transaction has locked is left out: to wait for it would delay, or fail,
-- the renewal of the others. One claim waits for its rows.
CREATE OR REPLACE FUNCTION {p}renew(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, next_poll bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  l       record;
  v_now   bigint;
  v_woken bytea;
  v_waiting bytea[];  -- the claims that were renewed as waiters
  a       record;
BEGIN
  IF cardinality(p_ids) = 1 THEN
    PERFORM FROM {p}names AS i
    WHERE i.namespace = p_namespaces[1] AND i.space = p_spaces[1]::smallint AND i.name = p_names[1]
      AND (i.id = p_ids[1] OR EXISTS (
        SELECT FROM {p}claims AS k WHERE k.id = p_ids[1] AND k.held IS NULL))
    FOR NO KEY UPDATE;
    PERFORM FROM {p}claims AS k WHERE k.id = p_ids[1] FOR NO KEY UPDATE;
  END IF;
  FOR l IN
    SELECT i.queue FROM {p}names AS i
    WHERE i.queue IN (SELECT k.queue FROM {p}claims AS k
                     WHERE k.id = ANY (p_ids) AND k.held IS NULL)
    ORDER BY i.namespace, i.space, i.name
    FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    UPDATE {p}names AS i SET used = {p}clock() WHERE i.queue = l.queue;
    v_now := {p}clock();
    v_woken := coalesce(v_woken, '') || coalesce({p}promote(l.queue, v_now, NULL, NULL), '');
    WITH free AS (
      SELECT k.id, w.wait FROM unnest(p_ids, p_waits) AS w (id, wait) JOIN {p}claims AS k USING (id)
      WHERE k.queue = l.queue AND k.held IS NULL AND NOT k.broken AND k.expires > v_now
      FOR NO KEY UPDATE OF k SKIP LOCKED
    ), renewed AS (
      UPDATE {p}claims AS k SET client = p_client, set_at = v_now,
        expires = greatest({p}ends(k.expires, k.set_at, v_now), v_now + w.wait)
      FROM free AS w WHERE k.id = w.id
      RETURNING k.id
    )
    SELECT v_waiting || array_agg(r.id) INTO v_waiting FROM renewed AS r;
  END LOOP;
  v_now := {p}clock();
  WITH free AS (
    SELECT m.queue, w.hold
    FROM unnest(p_namespaces, p_spaces, p_names, p_ids, p_holds)
      AS w (namespace, space, name, id, hold)
    JOIN {p}names AS m
      ON m.namespace = w.namespace AND m.space = w.space::smallint AND m.name = w.name AND m.id = w.id
    FOR NO KEY UPDATE OF m SKIP LOCKED
  ), renewed AS (
    UPDATE {p}names AS m SET set_at = v_now,
      expires = greatest({p}ends(m.expires, m.set_at, v_now), v_now + w.hold)
    FROM free AS w
    WHERE m.queue = w.queue AND m.expires > v_now
    RETURNING m.id, m.last, m.hold_ttl
  )
  -- One that was asked for twice was renewed once.
  SELECT array_agg(w.i - 1) AS i, array_agg(r.last) AS last, array_agg(r.hold_ttl) AS ttl INTO a
  FROM renewed AS r JOIN unnest(p_ids) WITH ORDINALITY AS w (id, i) USING (id);
  IF a.i IS NOT NULL THEN
    RETURN QUERY
    SELECT r.i, 1::bigint, r.last, r.ttl, NULL::bigint, NULL::bigint, NULL::bytea, v_woken
    FROM unnest(a.i, a.last, a.ttl) AS r (i, last, ttl);
    IF cardinality(a.i) = cardinality(p_ids) THEN
      RETURN;
    END IF;
  END IF;
  v_now := {p}clock();
  RETURN QUERY
  WITH asked AS (
    SELECT q.*, q.n - 1 AS i
    FROM unnest(p_namespaces, p_spaces, p_names, p_ids, p_holds) WITH ORDINALITY
      AS q (namespace, space, name, id, hold, n)
    WHERE a.i IS NULL OR NOT q.n - 1 = ANY (a.i)
  ), free AS (
    SELECT k.id, q.hold FROM asked AS q JOIN {p}claims AS k USING (id)
    WHERE k.held IS NOT NULL AND NOT k.broken AND k.expires > v_now
    FOR NO KEY UPDATE OF k SKIP LOCKED
  ), renewed AS (
    UPDATE {p}claims AS k SET set_at = v_now,
      expires = greatest({p}ends(k.expires, k.set_at, v_now), v_now + q.hold)
    FROM free AS q WHERE k.id = q.id
    RETURNING k.id, k.token, k.hold_ttl
  )
  SELECT q.i, 1::bigint, r.token, r.hold_ttl, NULL::bigint, NULL::bigint, NULL::bytea, v_woken
  FROM renewed AS r JOIN asked AS q USING (id)
  UNION ALL
  -- One that is there and was not renewed is left out: its row, or that of its queue, is locked.
  SELECT q.i,
         CASE WHEN s.state = 1 OR s.state = 2 AND q.id NOT IN (SELECT unnest(v_waiting))
                OR EXISTS (SELECT FROM {p}names AS m
                           WHERE m.namespace = q.namespace AND m.space = q.space::smallint
                             AND m.name = q.name AND m.id = q.id AND m.expires > v_now)
              THEN 9 ELSE s.state END,
         s.token, s.ttl, s.ahead, s.next_poll, s.record, v_woken
  FROM asked AS q CROSS JOIN LATERAL {p}claim_state(q.id, v_now) AS s
  WHERE NOT EXISTS (SELECT FROM renewed AS r WHERE r.id = q.id);
END $$;

-- As `renew`, but changes nothing and takes no lock. Arguments and result: `StatementId::Poll`.
CREATE OR REPLACE FUNCTION {p}poll(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, next_poll bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := {p}clock();
BEGIN
  RETURN QUERY
  SELECT a.i - 1, CASE WHEN m.id IS NULL THEN s.state ELSE 1 END, coalesce(s.token, m.last),
         coalesce(s.ttl, m.hold_ttl), s.ahead,
         -- A claim ahead has ended: a renewal takes it out.
         CASE WHEN s.state = 2 AND EXISTS (
           SELECT FROM {p}claims AS w JOIN {p}claims AS k USING (queue)
           WHERE w.id = a.id AND k.sequence < w.sequence AND k.expires <= v_now)
         THEN 0 ELSE s.next_poll END,
         s.record, NULL::bytea
  FROM unnest(p_namespaces, p_spaces, p_names, p_ids) WITH ORDINALITY
    AS a (namespace, space, name, id, i)
  CROSS JOIN LATERAL {p}claim_state(a.id, v_now) AS s
  LEFT JOIN {p}names AS m
    ON m.namespace = a.namespace AND m.space = a.space::smallint AND m.name = a.name
   AND m.id = a.id AND m.expires > v_now;
END $$;

