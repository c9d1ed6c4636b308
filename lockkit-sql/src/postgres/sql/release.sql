-- Takes a claim out of its queue. Arguments and result: `StatementId::Release`.
CREATE OR REPLACE FUNCTION {p}release(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_client bytea, OUT outcome bigint, OUT woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  l      record;
  v_now  bigint;
  v_ends bigint;
BEGIN
  -- By a change, which is noticed by those who come with an older snapshot.
  UPDATE {p}names AS n SET has_claim_rows = n.has_claim_rows
  WHERE n.namespace = p_namespace AND n.space = p_space::smallint AND n.name = p_name
  RETURNING n.queue, n.has_claim_rows, n.id, n.expires INTO l;
  IF NOT FOUND THEN
    outcome := 3;
    RETURN;
  END IF;
  v_now := {p}clock();
  IF NOT l.has_claim_rows THEN
    outcome := CASE WHEN l.id IS NULL OR l.expires <= v_now THEN 3 WHEN l.id = p_id THEN 1 ELSE 2 END;
    IF l.id = p_id THEN
      UPDATE {p}names AS n SET id = NULL, expires = 0 WHERE n.queue = l.queue;
    END IF;
    RETURN;
  END IF;
  DELETE FROM {p}claims AS k
  WHERE k.id = (SELECT o.id FROM {p}claims AS o WHERE o.id = p_id AND o.queue = l.queue
                FOR UPDATE SKIP LOCKED)
  RETURNING k.expires INTO v_ends;
  IF NOT FOUND THEN
    -- Perhaps a transaction is fenced with it: then it has ended, and leaves when that has.
    UPDATE {p}claims AS k SET expires = 0
    WHERE k.id = p_id AND k.queue = l.queue AND k.expires > v_now
    RETURNING v_now + 1 INTO v_ends;
  END IF;
  outcome := CASE WHEN v_ends > v_now THEN 1 ELSE 2 END;
  IF EXISTS (SELECT FROM {p}claims AS k WHERE k.queue = l.queue) THEN
    woken := {p}promote(l.queue, v_now, NULL, p_client);
  ELSIF outcome = 2 THEN
    outcome := 3;
  END IF;
  PERFORM {p}end_claim_rows(l.queue);
END $$;

-- What `fast_release.sql` falls back to. Result: that of `release` as bytes, 8 for the number; then
-- the new holders.
CREATE OR REPLACE FUNCTION {p}release_packed(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_client bytea) RETURNS bytea LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  r record;
BEGIN
  SELECT * INTO r FROM {p}release(p_namespace, p_space, p_name, p_id, p_client);
  RETURN int8send(r.outcome) || coalesce(r.woken, '');
END $$;

