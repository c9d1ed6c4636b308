-- Sessions of other programs that have advisory locks.
-- Parameters: $1 numbers, some NULL; $2 names, of which the server makes those.
-- Rows: the index from 1 in what was asked; the session's process and program; for how many seconds it has been in
-- its state, NULL where this user may not know.
SELECT n.at, l.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.state_change)::bigint
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS n (number, name, at)
JOIN pg_catalog.pg_locks AS l
  ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
  AND (l.classid::bigint << 32) | l.objid::bigint = coalesce(n.number, hashtext(n.name)::bigint)
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE a.application_name IS DISTINCT FROM 'lockkit'
ORDER BY n.at LIMIT 100;
