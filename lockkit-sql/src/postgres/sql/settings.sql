-- What decides what a crash may take. Result: `StatementId::Settings`. `synchronous_commit` can be set for each
-- role and database: that of every role that may use the tables counts, since it may hold locks.
SELECT convert_to(s.name, 'UTF8'), convert_to(s.value, 'UTF8') FROM (
  SELECT name, current_setting(name) AS value
  FROM (VALUES ('fsync'), ('full_page_writes'), ('synchronous_commit')) AS v (name)
  UNION ALL
  SELECT 'synchronous_commit' || coalesce(' of role ' || r.rolname, '')
           || coalesce(' in database ' || d.datname, ''),
         split_part(c.setting, '=', 2)
  FROM pg_catalog.pg_db_role_setting AS o CROSS JOIN LATERAL unnest(o.setconfig) AS c (setting)
    LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = o.setrole
    LEFT JOIN pg_catalog.pg_database AS d ON d.oid = o.setdatabase
  WHERE split_part(c.setting, '=', 1) = 'synchronous_commit'
    AND (o.setdatabase = 0 OR d.datname = current_database())
    AND (o.setrole = 0 OR has_table_privilege(o.setrole, '{p}claims', 'SELECT'))
) AS s
