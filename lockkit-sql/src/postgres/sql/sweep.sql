-- What stands for a claim that a transaction is to be fenced with: its row is locked until that
-- transaction has ended, in a way that lets it be renewed, but not be taken out. An operation that gives
-- the lock to another claim has to take it out first.
-- Result: how long its lease still is; NULL when it does not hold.
CREATE OR REPLACE FUNCTION {p}fence(p_id bytea) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ends bigint;
BEGIN
  SELECT k.expires INTO v_ends FROM {p}claims AS k
  WHERE k.id = p_id AND k.held IS NOT NULL AND NOT k.broken
  FOR KEY SHARE;
  RETURN CASE WHEN v_ends > {p}clock() THEN v_ends - {p}clock() END;
END $$;

-- Removes what is not used any more: of the next `p_bite` names, the queues that were not used for a day and have no
-- limit, ended claims, and records of breaks; and as many values that have ended. What another transaction uses
-- at this moment is passed by. Arguments and result: `StatementId::Sweep`.
CREATE OR REPLACE FUNCTION {p}sweep(p_namespace bytea, p_space bigint, p_name bytea, p_bite bigint,
  OUT namespace bytea, OUT space bigint, OUT name bytea) LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now   bigint := {p}clock();
  v_bite   bigint[];  -- queues
  v_queues bigint[];
  v_queue  bigint;
BEGIN
  SELECT array_agg(b.queue), (array_agg(b.namespace))[p_bite], (array_agg(b.space::bigint))[p_bite],
         (array_agg(b.name))[p_bite]
  INTO v_bite, namespace, space, name
  FROM (SELECT n.queue, n.namespace, n.space, n.name FROM {p}names AS n
        WHERE (n.namespace, n.space, n.name) > (p_namespace, p_space::smallint, p_name)
        ORDER BY n.namespace, n.space, n.name LIMIT p_bite) AS b;
  -- Claims that ended in queues that are not used.
  FOR v_queue IN
    SELECT DISTINCT c.queue FROM {p}claims AS c WHERE c.queue = ANY (v_bite) AND c.expires <= v_now
  LOOP
    PERFORM FROM {p}names AS n WHERE n.queue = v_queue FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE {p}names AS n SET used = n.used WHERE n.queue = v_queue;
      PERFORM {p}promote(v_queue, {p}clock(), NULL, NULL);
      PERFORM {p}end_claim_rows(v_queue);
    END IF;
  END LOOP;
  DELETE FROM {p}breaks AS b WHERE b.n IN (
    SELECT o.n FROM {p}breaks AS o WHERE o.queue = ANY (v_bite) AND o.expires <= v_now
      AND NOT EXISTS (SELECT FROM {p}claims AS c WHERE c.queue = o.queue)
    FOR UPDATE SKIP LOCKED);
  SELECT array_agg(o.queue) INTO v_queues FROM (
    SELECT n.queue FROM {p}names AS n
    WHERE n.queue = ANY (v_bite) AND n.used < v_now - 86400000000 AND n.expires <= v_now
      AND n.fixed_limit IS NULL AND NOT EXISTS (SELECT FROM {p}claims AS c WHERE c.queue = n.queue)
    FOR UPDATE SKIP LOCKED) AS o;
  IF v_queues IS NOT NULL THEN
    -- A claim may have come between the look and the lock; from here on none can.
    SELECT array_agg(n.queue) INTO v_queues FROM {p}names AS n
    WHERE n.queue = ANY (v_queues) AND n.expires <= {p}clock() AND n.fixed_limit IS NULL
      AND NOT EXISTS (SELECT FROM {p}claims AS c WHERE c.queue = n.queue);
    UPDATE {p}meta SET floor = greatest(floor,
      (SELECT max(n.last) FROM {p}names AS n WHERE n.queue = ANY (v_queues)));
    DELETE FROM {p}breaks AS b WHERE b.queue = ANY (v_queues);
    DELETE FROM {p}names AS n WHERE n.queue = ANY (v_queues);
  END IF;
  DELETE FROM {p}registers AS r WHERE (r.namespace, r.name) IN (
    SELECT o.namespace, o.name FROM {p}registers AS o WHERE o.purge_at <= v_now AND o.highest IS NULL
    LIMIT p_bite FOR UPDATE SKIP LOCKED);
  UPDATE {p}registers AS r SET value = NULL, expires = NULL, purge_at = NULL
  WHERE (r.namespace, r.name) IN (
    SELECT o.namespace, o.name FROM {p}registers AS o WHERE o.purge_at <= v_now AND o.highest IS NOT NULL
    LIMIT p_bite FOR UPDATE SKIP LOCKED);
END $$;

-- The version comes last: a client that finds it finds everything.
INSERT INTO {p}meta (version, floor) VALUES ({version}, 0)
ON CONFLICT (one) DO NOTHING;
COMMIT;

-- The rights of a program that uses these tables, with the name of its user:
-- GRANT USAGE ON SCHEMA "{schema}" TO app;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO app;
-- GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}" TO app;
