-- Breaks the claim that has this token. Arguments and result: `StatementId::Break`.
CREATE OR REPLACE FUNCTION {p}break(p_namespace bytea, p_space bigint, p_name bytea,
  p_token bigint, p_force bigint, p_record bytea, p_keep bigint,
  OUT outcome bigint, OUT woken bytea) LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_queue bigint;
  v_now  bigint;
  c      record;
BEGIN
  outcome := 0;
  v_queue := {p}lock_queue(p_namespace, p_space, p_name);
  IF v_queue IS NULL THEN
    RETURN;
  END IF;
  v_now := {p}clock();
  woken := {p}promote(v_queue, v_now, NULL, NULL);
  SELECT * INTO c FROM {p}claims AS k
  WHERE k.queue = v_queue AND k.token = p_token AND k.expires > v_now;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  outcome := 1;
  -- Of a queue, only the last one is shown.
  DELETE FROM {p}breaks AS b WHERE b.queue = v_queue AND b.expires <= v_now;
  INSERT INTO {p}breaks (queue, id, record, expires)
  VALUES (v_queue, c.id, p_record, v_now + greatest(p_keep, c.hold_ttl, c.wait_ttl));
  IF p_force = 1 THEN
    UPDATE {p}claims AS k SET expires = 0 WHERE k.id = c.id;
    woken := coalesce(woken, '') || coalesce({p}promote(v_queue, v_now, NULL, NULL), '');
    PERFORM {p}end_claim_rows(v_queue);
  ELSE
    UPDATE {p}claims AS k SET broken = true WHERE k.id = c.id;
  END IF;
END $$;

