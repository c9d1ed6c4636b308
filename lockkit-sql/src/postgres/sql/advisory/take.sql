-- Takes an advisory lock for this session, unless it has it already: the server would count that. The session ends
-- when it was idle for as long as the lease is.
-- Parameters: $1 its number, or NULL; $2 a name of which the server makes one; $3 the lease in ms, as text.
-- Row: its number, whether the session has it.
WITH asked AS MATERIALIZED (
  SELECT coalesce($1::bigint, hashtext($2::text)::bigint) AS key,
         set_config('idle_session_timeout', $3::text, false)
)
SELECT a.key, CASE WHEN EXISTS (
    SELECT FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.granted AND l.objsubid = 1
      AND l.mode = 'ExclusiveLock' AND (l.classid::bigint << 32) | l.objid::bigint = a.key
  ) THEN true ELSE pg_try_advisory_lock(a.key) END
FROM asked AS a;
