-- What stands for a claim that a transaction is to be fenced with: its row is locked until that
-- transaction has ended, in a way that lets it be renewed, but not be taken out. Whoever would give the
-- lock to somebody else has to take it out first.
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

-- Removes what nobody visits any more, `p_bite` rows of each kind at most: lists that were not used
-- for a day and have no limit (an ended claim in them goes with them), records of breaks, values that have ended. What
-- somebody uses at this moment is passed by.
CREATE OR REPLACE FUNCTION {p}sweep(p_bite bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now   bigint := {p}clock();
  v_lists bigint[];
  v_list  bigint;
BEGIN
  -- Claims that ended in lists which nobody visits.
  FOR v_list IN
    SELECT DISTINCT c.list FROM {p}claims AS c WHERE c.expires <= v_now LIMIT p_bite
  LOOP
    PERFORM FROM {p}names AS n WHERE n.list = v_list FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE {p}names AS n SET used = n.used WHERE n.list = v_list;
      PERFORM {p}settle(v_list, {p}clock(), NULL);
      PERFORM {p}disperse(v_list);
    END IF;
  END LOOP;
  SELECT array_agg(o.list) INTO v_lists FROM (
    SELECT n.list FROM {p}names AS n
    WHERE n.used < v_now - 86400000000 AND n.expires <= v_now AND n.given IS NULL
      AND NOT EXISTS (SELECT FROM {p}claims AS c WHERE c.list = n.list)
    LIMIT p_bite FOR UPDATE SKIP LOCKED) AS o;
  IF v_lists IS NOT NULL THEN
    -- A claim may have come between the look and the lock; from here on none can.
    SELECT array_agg(n.list) INTO v_lists FROM {p}names AS n
    WHERE n.list = ANY (v_lists) AND n.expires <= {p}clock() AND n.given IS NULL
      AND NOT EXISTS (SELECT FROM {p}claims AS c WHERE c.list = n.list);
    UPDATE {p}meta SET floor = greatest(floor,
      (SELECT max(n.last) FROM {p}names AS n WHERE n.list = ANY (v_lists)));
    DELETE FROM {p}breaks AS b WHERE b.list = ANY (v_lists);
    DELETE FROM {p}names AS n WHERE n.list = ANY (v_lists);
  END IF;
  DELETE FROM {p}breaks AS b WHERE b.n IN (
    SELECT o.n FROM {p}breaks AS o WHERE o.expires <= v_now
      AND NOT EXISTS (SELECT FROM {p}claims AS c WHERE c.list = o.list)
    LIMIT p_bite FOR UPDATE SKIP LOCKED);
  DELETE FROM {p}registers AS r WHERE (r.namespace, r.name) IN (
    SELECT o.namespace, o.name FROM {p}registers AS o WHERE o.purge_at <= v_now
    LIMIT p_bite FOR UPDATE SKIP LOCKED);
  RETURN 0;
END $$;

-- The version comes last: whoever finds it finds everything.
INSERT INTO {p}meta (version, floor) VALUES ({version}, 0)
ON CONFLICT (one) DO NOTHING;
COMMIT;

-- The rights of a program that uses these tables, with the name of its user:
-- GRANT USAGE ON SCHEMA "{schema}" TO app;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO app;
-- GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}" TO app;
