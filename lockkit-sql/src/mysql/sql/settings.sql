-- What decides what a crash may take. Result: `StatementId::Settings`.
SELECT 'innodb_flush_log_at_trx_commit' AS name,
       CAST(@@global.innodb_flush_log_at_trx_commit AS CHAR) AS value
UNION ALL SELECT 'log_bin', CAST(@@global.log_bin AS CHAR)
UNION ALL SELECT 'sync_binlog', CAST(@@global.sync_binlog AS CHAR)
