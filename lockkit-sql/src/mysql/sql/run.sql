-- Which run of which server this is. Result: `StatementId::Run`. Both servers count `Uptime` in whole seconds
-- from their start to the beginning of this statement, so the start comes out the same each time.
SELECT CAST(/*M! @@global.server_uid */ /*!80000 @@global.server_uuid */ AS CHAR) AS identity,
       CAST(UNIX_TIMESTAMP() - CAST(s.VARIABLE_VALUE AS SIGNED) AS CHAR) AS start,
       @@global.innodb_flush_log_at_trx_commit = 1
         AND (@@global.log_bin = 0 OR @@global.sync_binlog = 1) AS keeps_writes
FROM /*M! information_schema.GLOBAL_STATUS */ /*!80000 performance_schema.global_status */ AS s
WHERE s.VARIABLE_NAME = 'Uptime'
