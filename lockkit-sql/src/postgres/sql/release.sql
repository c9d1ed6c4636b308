-- Takes a claim out of its list. Arguments and result: `Verb::Release`.
CREATE OR REPLACE FUNCTION {p}release(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  OUT outcome bigint, OUT woken bytea) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_list bigint;
  v_now  bigint;
  v_ends bigint;
BEGIN
  UPDATE {p}names AS n SET used = {p}clock()
  WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name
  RETURNING n.list INTO v_list;
  IF NOT FOUND THEN
    outcome := 3;
    RETURN;
  END IF;
  v_now := {p}clock();
  DELETE FROM {p}claims AS k
  WHERE k.id = (SELECT o.id FROM {p}claims AS o WHERE o.id = p_id AND o.list = v_list
                FOR UPDATE SKIP LOCKED)
  RETURNING k.expires INTO v_ends;
  IF NOT FOUND THEN
    -- Perhaps a transaction is fenced with it: then it has ended, and leaves when that has.
    UPDATE {p}claims AS k SET expires = 0
    WHERE k.id = p_id AND k.list = v_list AND k.expires > v_now
    RETURNING v_now + 1 INTO v_ends;
  END IF;
  outcome := CASE WHEN v_ends > v_now THEN 1 ELSE 2 END;
  IF EXISTS (SELECT FROM {p}claims AS k WHERE k.list = v_list) THEN
    woken := {p}settle(v_list, v_now, NULL);
  ELSIF outcome = 2 THEN
    outcome := 3;
  END IF;
END $$;

