-- Renews many claims. Arguments and result: `StatementId::Renew`. The claims come in the order of their
-- keys, in which their queues are locked.
--
-- A claim that holds needs no lock but that of its own row: an operation that takes it out locks that row as
-- well, and passes it by when it is locked. Only a queue in which one of ours waits is locked as a
-- whole. Queues come first, so that no transaction that has a claim's row waits for a queue. A claim that is
-- alone is renewed in its queue's row. It may be moved to `claims` at any moment, and never back: so
-- these come first too, by a statement of their own, and the next one sees what was moved.
CREATE OR REPLACE FUNCTION {p}renew(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, next_poll bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  l       record;
  v_now   bigint;
  v_woken bytea;
  a       record;
BEGIN
  FOR l IN
    SELECT i.queue FROM {p}names AS i
    WHERE i.queue IN (SELECT k.queue FROM {p}claims AS k
                     WHERE k.id = ANY (p_ids) AND k.held IS NULL)
    ORDER BY i.namespace, i.space, i.name
  LOOP
    UPDATE {p}names AS i SET used = {p}clock() WHERE i.queue = l.queue;
    v_now := {p}clock();
    v_woken := coalesce(v_woken, '') || coalesce({p}promote(l.queue, v_now, NULL, NULL), '');
    UPDATE {p}claims AS k SET client = p_client, set_at = v_now,
      expires = greatest({p}ends(k.expires, k.set_at, v_now), v_now + w.wait)
    FROM unnest(p_ids, p_waits) AS w (id, wait)
    WHERE k.id = w.id AND k.queue = l.queue AND k.held IS NULL AND NOT k.broken
      AND k.expires > v_now;
  END LOOP;
  v_now := {p}clock();
  WITH renewed AS (
    UPDATE {p}names AS m SET set_at = v_now,
      expires = greatest({p}ends(m.expires, m.set_at, v_now), v_now + w.hold)
    FROM unnest(p_namespaces, p_spaces, p_names, p_ids, p_holds)
      AS w (namespace, space, name, id, hold)
    WHERE m.namespace = w.namespace AND m.space = w.space::smallint AND m.name = w.name
      AND m.id = w.id AND m.expires > v_now
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
    SELECT q.id, q.hold, q.i - 1 AS i
    FROM unnest(p_ids, p_holds) WITH ORDINALITY AS q (id, hold, i)
    WHERE a.i IS NULL OR NOT q.i - 1 = ANY (a.i)
  ), renewed AS (
    UPDATE {p}claims AS k SET set_at = v_now,
      expires = greatest({p}ends(k.expires, k.set_at, v_now), v_now + q.hold)
    FROM asked AS q
    WHERE k.id = q.id AND k.held IS NOT NULL AND NOT k.broken AND k.expires > v_now
    RETURNING q.i, k.token, k.hold_ttl
  )
  SELECT r.i, 1::bigint, r.token, r.hold_ttl, NULL::bigint, NULL::bigint, NULL::bytea, v_woken
  FROM renewed AS r
  UNION ALL
  -- One that was not renewed and holds was made a holder this very moment, with a full lease.
  SELECT q.i, s.state, s.token, s.ttl, s.ahead, s.next_poll,
         s.record, v_woken
  FROM asked AS q CROSS JOIN LATERAL {p}claim_state(q.id, v_now) AS s
  WHERE NOT EXISTS (SELECT FROM renewed AS r WHERE r.i = q.i);
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

