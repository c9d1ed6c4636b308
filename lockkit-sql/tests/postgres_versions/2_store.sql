-- The register function of version 2, in the schema `version_2`; all else of version 2 that clients call is there in later ones.
CREATE OR REPLACE FUNCTION version_2.lockkit_store(p_namespace bytea, p_name bytea, p_value bytea,
  p_expect bigint, p_expected bigint, p_token bigint, p_write bytea, p_ttl bigint,
  OUT outcome bigint, OUT number bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  r       record;
  v_now   bigint;
  v_there boolean;
  v_ends  bigint;
BEGIN
  -- A row that is not there yet is made without a value, so that there is one to lock. Its write
  -- id is nobody's.
  UPDATE version_2.lockkit_registers AS k SET version = k.version
  WHERE k.namespace = p_namespace AND k.name = p_name;
  IF NOT FOUND THEN
    INSERT INTO version_2.lockkit_registers AS k (namespace, name, version, write_id, purge_at)
    VALUES (p_namespace, p_name, 0, '', version_2.lockkit_clock() + 600000000)
    ON CONFLICT (namespace, name) DO UPDATE SET version = k.version;
  END IF;
  SELECT * INTO r FROM version_2.lockkit_registers AS k WHERE k.namespace = p_namespace AND k.name = p_name;
  v_now := version_2.lockkit_clock();
  v_there := r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > v_now);
  IF r.write_id = p_write THEN
    outcome := 1;
    number := r.version;
  ELSIF p_token > 0 AND p_token < r.highest THEN
    outcome := 2;
    number := r.highest;
  ELSIF p_expect = 1 AND v_there OR p_expect = 2 AND (NOT v_there OR r.version <> p_expected) THEN
    outcome := 0;
  ELSE
    outcome := 1;
    number := greatest(r.version + 1, v_now);
    v_ends := CASE WHEN p_value IS NOT NULL AND p_ttl > 0 THEN v_now + p_ttl END;
    UPDATE version_2.lockkit_registers AS k SET value = p_value, version = number, write_id = p_write,
      expires = v_ends, highest = greatest(k.highest, nullif(p_token, 0)),
      -- What has, or had, a token is remembered for good.
      purge_at = CASE WHEN k.highest IS NOT NULL OR p_token > 0 THEN NULL
                      WHEN p_value IS NULL THEN v_now + 600000000
                      ELSE v_ends + 600000000 END
    WHERE k.namespace = p_namespace AND k.name = p_name;
  END IF;
END $$;
