-- Changes one claim of a queue. Arguments and result: `StatementId::Amend`.
CREATE OR REPLACE FUNCTION {p}amend(p_namespace bytea, p_space bigint, p_name bytea, p_id bytea,
  p_what bigint, p_value bigint)
RETURNS TABLE (n bigint, state bigint, token bigint, ttl bigint, ahead bigint, next_poll bigint,
  record bytea, woken bytea) LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_queue  bigint;
  v_now   bigint;
  v_sequence bigint;
  v_tags  bytea;
BEGIN
  v_queue := {p}lock_queue(p_namespace, p_space, p_name);
  v_now := {p}clock();
  v_tags := {p}promote(v_queue, v_now, p_id, NULL);
  IF p_what = 2 THEN
    -- A raise lifts the waiters behind the claim as well, or they would get lower tokens later; their
    -- distances stay, so the order does. Claims that share with it and hold already do not conflict.
    SELECT k.sequence INTO v_sequence FROM {p}claims AS k
    WHERE k.id = p_id AND k.queue = v_queue AND k.expires > v_now AND NOT k.broken AND k.token < p_value;
    UPDATE {p}claims AS k SET token = greatest(k.token, p_value + (k.sequence - v_sequence))
    WHERE k.queue = v_queue AND (k.sequence = v_sequence OR k.sequence > v_sequence AND k.held IS NULL);
    -- Later tokens are raised only for a claim that is there.
    IF FOUND THEN
      UPDATE {p}names AS n SET last = greatest(n.last,
        (SELECT max(k.token) FROM {p}claims AS k WHERE k.queue = v_queue))
      WHERE n.queue = v_queue;
    END IF;
  END IF;
  UPDATE {p}claims AS k SET set_at = v_now,
    -- All but a shortening are answered as a renewal, so the lease is that of one.
    expires = CASE p_what WHEN 0 THEN v_now + p_value
                          ELSE greatest({p}ends(k.expires, k.set_at, v_now),
                            v_now + CASE WHEN k.held IS NULL THEN k.wait_ttl ELSE k.hold_ttl END) END,
    weight = CASE p_what WHEN 1 THEN 1 ELSE k.weight END
  WHERE k.id = p_id AND k.queue = v_queue AND k.expires > v_now AND NOT k.broken
    AND (p_what > 0 OR k.held IS NOT NULL);
  IF p_what = 1 THEN
    v_tags := coalesce(v_tags, '') || coalesce({p}promote(v_queue, v_now, p_id, NULL), '');
  END IF;
  PERFORM {p}end_claim_rows(v_queue);
  RETURN QUERY SELECT 0::bigint, s.state, s.token, s.ttl, s.ahead, s.next_poll, s.record, v_tags
  FROM {p}claim_state(p_id, v_now) AS s;
END $$;

