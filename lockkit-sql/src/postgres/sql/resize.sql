-- Gives a semaphore a limit that stays, in the row of its queue, and lets those begin to hold who now do.
-- Arguments and result: `StatementId::Resize`.
--
-- Claims that hold are not touched, as a renewal may have their rows: they hold whatever the limit.
CREATE OR REPLACE FUNCTION {p}resize(p_namespace bytea, p_space bigint, p_name bytea,
  p_always bigint, p_capacity bigint, OUT capacity bigint, OUT woken bytea)
LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_queue bigint;
BEGIN
  IF p_always = 0 THEN
    SELECT n.fixed_limit INTO capacity FROM {p}names AS n
    WHERE n.namespace = p_namespace AND n.space = p_space::smallint AND n.name = p_name;
    IF capacity IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  LOOP
    v_queue := {p}lock_queue(p_namespace, p_space, p_name);
    EXIT WHEN v_queue IS NOT NULL;
    INSERT INTO {p}names (namespace, space, name, last, used)
    VALUES (p_namespace, p_space::smallint, p_name, 0, {p}clock())
    ON CONFLICT (namespace, space, name) DO NOTHING;
  END LOOP;
  woken := {p}promote(v_queue, {p}clock(), NULL, NULL);
  -- Without a limit of its own it keeps the one that it is in use with. The row may be new, and have
  -- been there before.
  UPDATE {p}names AS n SET used = {p}clock(), last = greatest(n.last, (SELECT floor FROM {p}meta)),
    fixed_limit = CASE p_always WHEN 1 THEN p_capacity ELSE coalesce(n.fixed_limit,
      (SELECT max(k.capacity) FROM {p}claims AS k WHERE k.queue = v_queue), p_capacity) END
  WHERE n.queue = v_queue RETURNING n.fixed_limit INTO capacity;
  UPDATE {p}claims AS k SET capacity = p_capacity
  WHERE p_always = 1 AND k.queue = v_queue AND k.held IS NULL AND k.capacity <> p_capacity;
  woken := coalesce(woken, '') || coalesce({p}promote(v_queue, {p}clock(), NULL, NULL), '');
END $$;

