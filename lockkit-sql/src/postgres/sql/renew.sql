-- Renews many claims. Arguments and result: `Verb::Renew`. The claims come in the order of their
-- keys, in which their lists are locked.
--
-- A claim that holds needs no lock but that of its own row: whoever takes it out locks that row as
-- well, and passes it by when it is locked. Only a list in which one of ours waits is locked as a
-- whole. Lists come first, so that nobody who holds a claim's row waits for a list.
CREATE OR REPLACE FUNCTION {p}renew(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, look bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  l       record;
  v_now   bigint;
  v_woken bytea;
BEGIN
  FOR l IN
    SELECT i.list FROM {p}names AS i
    WHERE i.list IN (SELECT k.list FROM {p}claims AS k
                     WHERE k.id = ANY (p_ids) AND k.held IS NULL)
    ORDER BY i.namespace, i.space, i.name
  LOOP
    UPDATE {p}names AS i SET used = {p}clock() WHERE i.list = l.list;
    v_now := {p}clock();
    v_woken := coalesce(v_woken, '') || coalesce({p}settle(l.list, v_now, NULL), '');
    UPDATE {p}claims AS k SET client = p_client, expires = greatest(k.expires, v_now + w.wait)
    FROM unnest(p_ids, p_waits) AS w (id, wait)
    WHERE k.id = w.id AND k.list = l.list AND k.held IS NULL AND NOT k.broken
      AND k.expires > v_now;
  END LOOP;
  v_now := {p}clock();
  RETURN QUERY
  WITH asked AS (
    SELECT a.id, a.hold, a.i - 1 AS i
    FROM unnest(p_ids, p_holds) WITH ORDINALITY AS a (id, hold, i)
  ), renewed AS (
    UPDATE {p}claims AS k SET expires = greatest(k.expires, v_now + a.hold)
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
  FROM asked AS a CROSS JOIN LATERAL {p}stands(a.id, v_now) AS s
  WHERE NOT EXISTS (SELECT FROM renewed AS r WHERE r.i = a.i);
END $$;

-- As `renew`, but changes nothing and takes no lock. Arguments and result: `Verb::Look`.
CREATE OR REPLACE FUNCTION {p}look(p_namespaces bytea[], p_spaces bigint[], p_names bytea[],
  p_ids bytea[], p_holds bigint[], p_waits bigint[], p_client bytea)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, look bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := {p}clock();
BEGIN
  RETURN QUERY
  SELECT a.i - 1, s.state, s.token, s.ttl, s.ahead,
         -- Somebody ahead has ended: a renewal takes it out.
         CASE WHEN s.state = 2 AND EXISTS (
           SELECT FROM {p}claims AS m JOIN {p}claims AS k USING (list)
           WHERE m.id = a.id AND k.place < m.place AND k.expires <= v_now)
         THEN 0 ELSE s.look END,
         s.record, NULL::bytea
  FROM unnest(p_ids) WITH ORDINALITY AS a (id, i) CROSS JOIN LATERAL {p}stands(a.id, v_now) AS s;
END $$;

