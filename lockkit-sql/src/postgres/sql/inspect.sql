-- What people and programs may see of a queue: without ids, and times as stretches from now.
CREATE OR REPLACE FUNCTION {p}list_claims(p_queues bigint[], p_empty boolean)
RETURNS TABLE (namespace bytea, space bigint, name bytea, token bigint, weight bigint,
  capacity bigint, hold_ttl bigint, queued bigint, remaining bigint, held bigint, broken bigint,
  identity bytea, note bytea, record bytea) LANGUAGE sql STABLE AS $$
  SELECT n.namespace, n.space::bigint, n.name, c.token, c.weight, coalesce(n.fixed_limit, c.capacity),
         c.hold_ttl,
         t.now - c.queued, c.expires - greatest(t.now, c.set_at), t.now - c.held, c.broken::int::bigint, c.identity,
         c.note,
         (SELECT b.record FROM {p}breaks AS b WHERE b.queue = n.queue ORDER BY b.n DESC LIMIT 1)
  FROM (SELECT {p}clock() AS now OFFSET 0) AS t
  CROSS JOIN {p}names AS n
  LEFT JOIN LATERAL (
    SELECT k.sequence, k.token, k.weight, k.capacity, k.hold_ttl, k.queued, k.expires, k.held, k.set_at,
           k.broken, k.identity, k.note
    FROM {p}claims AS k WHERE k.queue = n.queue AND k.expires > t.now
    UNION ALL
    SELECT n.last, n.last, n.weight, n.capacity, n.hold_ttl, n.used, n.expires, n.used, n.set_at,
           false, n.identity, n.note
    WHERE n.id IS NOT NULL AND n.expires > t.now
  ) AS c ON true
  WHERE n.queue = ANY (p_queues) AND (p_empty OR c.token IS NOT NULL)
  ORDER BY n.space, n.name, c.sequence
$$;

-- One queue. Arguments and result: `StatementId::Inspect`.
CREATE OR REPLACE FUNCTION {p}inspect(p_namespace bytea, p_space bigint, p_name bytea)
RETURNS TABLE (namespace bytea, space bigint, name bytea, token bigint, weight bigint,
  capacity bigint, hold_ttl bigint, queued bigint, remaining bigint, held bigint, broken bigint,
  identity bytea, note bytea, record bytea) LANGUAGE sql STABLE AS $$
  SELECT * FROM {p}list_claims(ARRAY(SELECT n.queue FROM {p}names AS n
    WHERE n.namespace = p_namespace AND n.space = p_space AND n.name = p_name), true)
$$;

-- Some queues in use. Arguments and result: `StatementId::List`.
CREATE OR REPLACE FUNCTION {p}list(p_namespace bytea, p_space bigint, p_prefix bytea,
  p_after_space bigint, p_after bytea, p_limit bigint)
RETURNS TABLE (namespace bytea, space bigint, name bytea, token bigint, weight bigint,
  capacity bigint, hold_ttl bigint, queued bigint, remaining bigint, held bigint, broken bigint,
  identity bytea, note bytea, record bytea) LANGUAGE sql STABLE AS $$
  SELECT * FROM {p}list_claims(ARRAY(SELECT n.queue FROM {p}names AS n
    WHERE n.namespace = p_namespace AND (p_space < 0 OR n.space = p_space)
      AND n.name >= p_prefix AND substr(n.name, 1, length(p_prefix)) = p_prefix
      AND (n.space, n.name) > (p_after_space, p_after)
      AND (n.expires > {p}clock() OR EXISTS (
        SELECT FROM {p}claims AS c WHERE c.queue = n.queue AND c.expires > {p}clock()))
    ORDER BY n.space, n.name LIMIT p_limit), false)
$$;

-- What an operator should know. Result: `StatementId::Health`.
CREATE OR REPLACE FUNCTION {p}health(OUT version bigint, OUT server bytea, OUT writes bigint,
  OUT waits bigint) LANGUAGE sql VOLATILE AS $$
  SELECT m.version, convert_to('PostgreSQL ' || current_setting('server_version'), 'UTF8'),
         (NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off')::int::bigint,
         (current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on')::int::bigint
  FROM {p}meta AS m
$$;

