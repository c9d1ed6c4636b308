-- Gives a semaphore a limit that stays, in the row of its list, and lets those begin to hold who now do.
-- Arguments and result: `Verb::Resize`.
--
-- Claims that hold are not touched, as a renewal may have their rows: they hold whatever the limit.
CREATE OR REPLACE FUNCTION {p}resize(p_namespace bytea, p_space bigint, p_name bytea,
  p_always bigint, p_capacity bigint, OUT capacity bigint, OUT woken bytea)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_list bigint;
BEGIN
  IF p_always = 0 THEN
    SELECT n.given INTO capacity FROM {p}names AS n
    WHERE n.namespace = p_namespace AND n.space = p_space::smallint AND n.name = p_name;
    IF capacity IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  LOOP
    v_list := {p}enter(p_namespace, p_space, p_name);
    EXIT WHEN v_list IS NOT NULL;
    INSERT INTO {p}names (namespace, space, name, last, used)
    VALUES (p_namespace, p_space::smallint, p_name, 0, {p}clock())
    ON CONFLICT (namespace, space, name) DO NOTHING;
  END LOOP;
  woken := {p}settle(v_list, {p}clock(), NULL);
  -- Without a limit of its own it keeps the one that it is in use with. The row may be new, and have
  -- been there before.
  UPDATE {p}names AS n SET used = {p}clock(), last = greatest(n.last, (SELECT floor FROM {p}meta)),
    given = CASE p_always WHEN 1 THEN p_capacity ELSE coalesce(n.given,
      (SELECT max(k.capacity) FROM {p}claims AS k WHERE k.list = v_list), p_capacity) END
  WHERE n.list = v_list RETURNING n.given INTO capacity;
  UPDATE {p}claims AS k SET capacity = p_capacity
  WHERE p_always = 1 AND k.list = v_list AND k.held IS NULL AND k.capacity <> p_capacity;
  woken := coalesce(woken, '') || coalesce({p}settle(v_list, {p}clock(), NULL), '');
END $$;

