-- What is wrong with ShedLock's table. A TIMESTAMP shows each session its own time zone's time, so lockkit's session
-- has that of the server, as ShedLock's have.
-- Rows: 0 a column that cannot be used, 1 a row that begins in the future, 2 one whose lease is longer than a day;
-- the column or the name; how many seconds.
SELECT 0, CONCAT(c.column_name, ' is ', c.column_type, ', time_zone ', @@session.time_zone), 0
FROM information_schema.columns AS c
WHERE CONCAT(c.table_schema, '.', c.table_name)
      = IF('{shedlock}' LIKE '%.%', '{shedlock}', CONCAT(DATABASE(), '.{shedlock}'))
  AND c.column_name IN ('{lock_until}', '{locked_at}')
  AND (c.data_type NOT IN ('timestamp', 'datetime') OR c.datetime_precision < 3
       OR c.data_type = 'timestamp' AND @@session.time_zone <> @@global.time_zone)
UNION ALL
(SELECT IF({locked_at} > TIMESTAMPADD(SECOND, 1, {utc}), 1, 2), {name},
        TIMESTAMPDIFF(SECOND, {utc}, IF({locked_at} > TIMESTAMPADD(SECOND, 1, {utc}), {locked_at}, {lock_until}))
 FROM {shedlock}
 WHERE {locked_at} > TIMESTAMPADD(SECOND, 1, {utc}) OR {lock_until} > TIMESTAMPADD(DAY, 1, {utc})
 LIMIT 100)
