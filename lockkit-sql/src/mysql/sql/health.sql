-- One row: version of the tables, the server's name and version, 1 when it takes writes, 1 when a
-- commit waits for the disk; the size of a packet in bytes, 1 where an empty text is NULL.
SELECT (SELECT version FROM lockkit_meta WHERE one = 1) AS version,
       CONCAT(IF(VERSION() LIKE '%MariaDB%', 'MariaDB ', 'MySQL '), VERSION()) AS server,
       CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') AS writes,
       @@global.innodb_flush_log_at_trx_commit IN (1, 3)
         AND (NOT @@global.log_bin OR @@global.sync_binlog = 1) AS durable,
       @@max_allowed_packet AS packet,
       FIND_IN_SET('EMPTY_STRING_IS_NULL', @@sql_mode) > 0 AS empty_is_null;
