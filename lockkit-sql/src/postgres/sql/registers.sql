-- A register's value. Arguments and result: `StatementId::Load`.
CREATE OR REPLACE FUNCTION {p}load(p_namespace bytea, p_name bytea)
RETURNS TABLE (value bytea, version bigint, highest bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now  bigint := {p}clock();
  v_back boolean;
BEGIN
  SELECT r.value, r.version, r.highest, r.set_at > v_now INTO value, version, highest, v_back
  FROM {p}registers AS r
  WHERE r.namespace = p_namespace AND r.name = p_name AND r.value IS NOT NULL
    AND (r.expires IS NULL OR r.expires > v_now);
  IF FOUND THEN
    IF v_back THEN
      PERFORM {p}redate(p_namespace, p_name);
    END IF;
    RETURN NEXT;
  END IF;
END $$;

-- What was set while the clock was ahead ends as long from now.
CREATE OR REPLACE FUNCTION {p}redate(p_namespace bytea, p_name bytea) RETURNS void
LANGUAGE sql VOLATILE AS $$
  UPDATE {p}registers AS r SET set_at = {p}clock(), expires = r.expires - r.set_at + {p}clock(),
    purge_at = r.purge_at - r.set_at + {p}clock()
  WHERE r.namespace = p_namespace AND r.name = p_name AND r.set_at > {p}clock()
$$;

-- Writes a register, or deletes its value. Arguments and result: `StatementId::Write`. The rule is that of
-- `WriteResult::decide`.
-- Versions are never less than the clock, so that they grow when a row was removed.
CREATE OR REPLACE FUNCTION {p}write(p_namespace bytea, p_name bytea, p_value bytea,
  p_expect bigint, p_expected bigint, p_token bigint, p_write bytea, p_ttl bigint,
  p_repeated bigint, OUT outcome bigint, OUT number bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  r       record;
  v_now   bigint;
  v_there boolean;
  v_ends  bigint;
BEGIN
  -- A row that is not there yet is made without a value, so that there is one to lock. Its write
  -- id is none of a write.
  UPDATE {p}registers AS k SET version = k.version
  WHERE k.namespace = p_namespace AND k.name = p_name;
  IF NOT FOUND THEN
    INSERT INTO {p}registers AS k (namespace, name, version, write_id, purge_at)
    VALUES (p_namespace, p_name, 0, '', {p}clock() + 600000000)
    ON CONFLICT (namespace, name) DO UPDATE SET version = k.version;
  END IF;
  SELECT * INTO r FROM {p}registers AS k WHERE k.namespace = p_namespace AND k.name = p_name;
  v_now := {p}clock();
  IF r.set_at > v_now THEN
    PERFORM {p}redate(p_namespace, p_name);
  END IF;
  v_there := r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > v_now);
  IF r.write_id = p_write THEN
    outcome := 1;
    number := r.version;
  ELSIF p_token > 0 AND p_token < r.highest THEN
    outcome := 2;
    number := r.highest;
  ELSIF p_expect = 1 AND v_there OR p_expect = 2 AND (NOT v_there OR r.version <> p_expected) THEN
    outcome := 0;
  ELSIF p_repeated = 1 AND r.version > 0 AND (p_expect = 1 OR p_expect = 0 AND p_token > 0)
    AND NOT (p_token > 0 AND p_token > coalesce(r.highest, 0)) THEN
    -- An earlier attempt may have been applied and overwritten. (Version 0: nothing was ever written.)
    outcome := 0;
  ELSE
    outcome := 1;
    number := greatest(r.version + 1, v_now);
    v_ends := CASE WHEN p_value IS NOT NULL AND p_ttl > 0 THEN v_now + p_ttl END;
    UPDATE {p}registers AS k SET value = p_value, version = number, write_id = p_write,
      set_at = v_now, expires = v_ends, highest = greatest(k.highest, nullif(p_token, 0)),
      -- What has, or had, a token is remembered for good, without its value.
      purge_at = CASE WHEN p_value IS NOT NULL THEN v_ends + 600000000
                      WHEN k.highest IS NULL AND p_token = 0 THEN v_now + 600000000 END
    WHERE k.namespace = p_namespace AND k.name = p_name;
  END IF;
END $$;

-- What is added to the tokens of a namespace, and its neighbours; where it has none, those that are given become
-- its own. `StatementId::Counter`, `StatementId::RaiseCounter`.
CREATE OR REPLACE FUNCTION {p}counter(p_namespace bytea, p_neighbours bytea,
  OUT counter bigint, OUT neighbours bytea) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  SELECT b.counter, b.neighbours INTO counter, neighbours FROM {p}counters AS b
  WHERE b.namespace = p_namespace;
  IF neighbours IS NULL AND p_neighbours IS NOT NULL THEN
    INSERT INTO {p}counters AS b VALUES (p_namespace, 0, p_neighbours)
    ON CONFLICT (namespace) DO UPDATE SET neighbours = coalesce(b.neighbours, excluded.neighbours)
    RETURNING b.counter, b.neighbours INTO counter, neighbours;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION {p}raise_counter(p_namespace bytea, p_counter bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
  INSERT INTO {p}counters AS b (namespace, counter) VALUES (p_namespace, p_counter)
  ON CONFLICT (namespace) DO UPDATE SET counter = greatest(b.counter, excluded.counter) RETURNING b.counter
$$;

