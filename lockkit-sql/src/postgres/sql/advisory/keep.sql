-- The advisory locks that this session has, by their numbers.
SELECT (l.classid::bigint << 32) | l.objid::bigint
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.granted AND l.objsubid = 1
  AND l.mode = 'ExclusiveLock';
