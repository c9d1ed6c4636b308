-- Which run of which server this is. Result: `StatementId::Run`. The timeline changes when a standby takes over
-- and when a backup is put back.
SELECT convert_to(c.system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
                  'UTF8') AS identity,
       convert_to(extract(epoch FROM pg_postmaster_start_time())::text, 'UTF8') AS start,
       (current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'
        AND current_setting('synchronous_commit') <> 'off')::int::bigint AS keeps_writes
FROM pg_control_system() AS c
