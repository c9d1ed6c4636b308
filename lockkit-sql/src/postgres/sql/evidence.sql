-- A renewal, and behind the row of its first claim what tells which server answered: its clock in
-- microseconds, its system identifier and timeline, how far its log has got, and the connection.
SELECT f.*, e.*
FROM ({renewal}) AS f LEFT JOIN LATERAL (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS time,
         convert_to(s.system_identifier || '-' || substr(pg_walfile_name(w.lsn), 1, 8), 'UTF8') AS run,
         (w.lsn - '0/0'::pg_lsn)::bigint AS position, pg_backend_pid()::bigint AS connection
  FROM pg_control_system() AS s, (SELECT pg_current_wal_lsn() AS lsn) AS w
  WHERE f.n = 0
) AS e ON true
