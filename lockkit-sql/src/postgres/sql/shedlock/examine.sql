-- What is wrong with ShedLock's table. Its times are UTC without a time zone: a column with one shows each session
-- another time.
-- Rows: 0 a column that cannot be used, 1 a row that begins in the future, 2 one whose lease is longer than a day;
-- the column or the name; how many seconds.
SELECT 0::bigint, convert_to(c.attname || ' is ' || format_type(c.atttypid, c.atttypmod), 'UTF8'), 0::bigint
FROM pg_catalog.pg_attribute AS c
WHERE c.attrelid = '{shedlock}'::regclass AND c.attname IN (lower('{lock_until}'), lower('{locked_at}'))
  AND (c.atttypid <> 'timestamp'::regtype OR c.atttypmod BETWEEN 0 AND 2)
UNION ALL
(SELECT CASE WHEN s.{locked_at} > {utc} + interval '1 second' THEN 1 ELSE 2 END::bigint,
        convert_to(s.{name}::text, 'UTF8'),
        extract(epoch FROM CASE WHEN s.{locked_at} > {utc} + interval '1 second' THEN s.{locked_at}
                                ELSE s.{lock_until} END - {utc})::bigint
 FROM {shedlock} AS s
 WHERE s.{locked_at} > {utc} + interval '1 second'
    OR s.{lock_until} > {utc} + interval '1 day' AND isfinite(s.{lock_until})
 LIMIT 100);
