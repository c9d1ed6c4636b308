-- Hands an exclusive lock over: takes its holder out, lets the next claim hold, and puts a new claim at the end. It
-- reads the queue from the sequence number of the holder that leaves, never from the start, where rows of earlier holders
-- may not be vacuumed yet, and no more of it in a long queue than in a short one: a bitmap scan, which is planned
-- for a small table, would read all of it. Anything else is left to `submit`, in the same request: there only `last` and `used` of
-- the queue have changed by then.
-- Arguments and result: `StatementId::Pass`; the result as bytes, 8 for each number, NULL being 0; then the new
-- holders.
CREATE OR REPLACE FUNCTION {p}pass(p_namespace bytea, p_space bigint, p_name bytea, p_leaving bytea,
  p_id bytea, p_capacity bigint, p_hold bigint, p_wait bigint, p_client bytea, p_identity bytea,
  p_note bytea) RETURNS bytea LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_queue   bigint;
  v_last    bigint;
  v_now     bigint;
  v_sequence   bigint;
  v_ahead   bigint;
  v_longest bigint;
  v_ends    bigint;
  v_woken   bytea;
  h         record;  -- the next holder
  c         record;
BEGIN
  UPDATE {p}names AS n SET used = {p}clock(), last = greatest(n.last + 1, {p}clock())
  WHERE n.namespace = p_namespace AND n.space = p_space::smallint AND n.name = p_name
    AND n.has_claim_rows AND n.fixed_limit IS NULL
  RETURNING n.queue, n.last INTO v_queue, v_last;
  v_now := {p}clock();
  -- No claim is ahead of an exclusive holder, so the next one is behind it.
  SELECT o.sequence INTO v_sequence FROM {p}claims AS o
  WHERE o.id = p_leaving AND o.queue = v_queue AND o.held IS NOT NULL AND o.weight = o.capacity
    AND o.expires > v_now AND o.set_at <= v_now
  FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN {p}submit_packed(p_namespace, p_space, p_name, p_leaving, p_id, p_capacity, p_hold, p_wait,
                            p_client, p_identity, p_note);
  END IF;
  UPDATE {p}claims AS k SET held = v_now, set_at = v_now, expires = greatest(k.expires, v_now + k.hold_ttl)
  WHERE k.id = (SELECT f.id FROM {p}claims AS f WHERE f.queue = v_queue AND f.sequence > v_sequence
                ORDER BY f.sequence LIMIT 1)
    AND k.held IS NULL AND k.expires > v_now AND k.weight = k.capacity AND k.set_at <= v_now
    AND NOT k.broken AND (SELECT r.sequence FROM {p}claims AS r WHERE r.id = p_id) IS NULL
  RETURNING k.id, k.sequence, k.token, k.hold_ttl, k.client INTO h;
  IF NOT FOUND THEN
    -- The next claim does not take over as it is, or the one that comes is in the queue already.
    DELETE FROM {p}claims AS k WHERE k.id = p_leaving;
    v_woken := {p}promote(v_queue, v_now, NULL, p_client);
    SELECT * INTO c FROM {p}acquire(p_namespace, p_space, p_name, p_id, p_capacity, p_capacity, p_hold,
                                    p_wait, p_client, p_identity, p_note, 0);
    RETURN int8send(1) || int8send(c.outcome) || int8send(coalesce(c.token, 0))
      || int8send(coalesce(c.ttl, 0)) || int8send(coalesce(c.ahead, 0))
      || int8send(coalesce(c.next_poll, 0)) || coalesce(v_woken, '') || coalesce(c.woken, '');
  END IF;
  IF h.client <> p_client THEN
    PERFORM {p}notify(h.client, 'g', h.id, h.token);
  END IF;
  -- A longer queue costs no more: beyond 64, how many are ahead is said by the next renewal.
  SELECT count(*), max(f.wait_ttl) INTO v_ahead, v_longest FROM (
    SELECT k.wait_ttl FROM {p}claims AS k WHERE k.queue = v_queue AND k.sequence >= h.sequence
    ORDER BY k.sequence LIMIT 64) AS f;
  -- As in `promote`.
  IF h.hold_ttl * 3 < v_longest THEN
    SELECT k.id, k.client, k.wait_ttl INTO c FROM {p}claims AS k
    WHERE k.queue = v_queue AND k.sequence > h.sequence ORDER BY k.sequence LIMIT 1;
    IF h.hold_ttl * 3 < c.wait_ttl THEN
      PERFORM {p}notify(c.client, 'l', c.id, 0);
    END IF;
  END IF;
  SELECT k.expires INTO v_ends FROM {p}claims AS k
  WHERE k.queue = v_queue AND k.sequence > v_sequence ORDER BY k.sequence DESC LIMIT 1;
  -- The row of the claim that leaves becomes that of the one that comes: its page has room for it, where a row that
  -- is inserted would need a page that is not used up yet.
  UPDATE {p}claims AS k
  SET id = p_id, sequence = v_last, token = v_last, weight = p_capacity, capacity = p_capacity,
      hold_ttl = p_hold, wait_ttl = p_wait, queued = v_now, expires = v_now + p_wait, held = NULL,
      broken = false, client = p_client, identity = p_identity, note = p_note, set_at = v_now
  WHERE k.id = p_leaving;
  RETURN int8send(1) || int8send(2) || int8send(v_last) || int8send(p_hold) || int8send(v_ahead)
    || int8send(greatest(v_ends - v_now, 1)) || {p}tag(h.id) || int8send(h.token);
END $$;

-- A release and an acquire of one queue by `submit`. Result: as of `pass`.
CREATE OR REPLACE FUNCTION {p}submit_packed(p_namespace bytea, p_space bigint, p_name bytea,
  p_leaving bytea, p_id bytea, p_capacity bigint, p_hold bigint, p_wait bigint, p_client bytea,
  p_identity bytea, p_note bytea) RETURNS bytea LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  s          record;
  v_released bytea;
  v_acquired bytea;
  v_woken    bytea := '';
BEGIN
  FOR s IN
    SELECT * FROM {p}submit(
      ARRAY[p_namespace, p_namespace], ARRAY[p_space, p_space], ARRAY[p_name, p_name],
      ARRAY[p_leaving, p_id], ARRAY[0, 1]::bigint[], ARRAY[p_capacity, p_capacity],
      ARRAY[p_capacity, p_capacity], ARRAY[p_hold, p_hold], ARRAY[p_wait, p_wait],
      ARRAY[''::bytea, p_identity], ARRAY[NULL, p_note], p_client)
  LOOP
    v_woken := v_woken || coalesce(s.woken, '');
    IF s.n = 0 THEN
      v_released := int8send(s.outcome);
    ELSE
      v_acquired := int8send(s.outcome) || int8send(coalesce(s.token, 0))
        || int8send(coalesce(s.ttl, 0)) || int8send(coalesce(s.ahead, 0))
        || int8send(coalesce(s.next_poll, 0));
    END IF;
  END LOOP;
  RETURN v_released || v_acquired || v_woken;
END $$;

