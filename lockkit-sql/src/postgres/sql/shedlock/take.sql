-- Takes a row of ShedLock's table, if it is free or this owner's. ShedLock remembers that a row is there and never
-- inserts it again, so rows are not removed.
-- Parameters: $1 name; $2 owner; $3 the lease in microseconds.
-- Row: 1 when it is this owner's; what is left of its lease in microseconds.
WITH asked AS MATERIALIZED (
  SELECT convert_from($1, 'UTF8') AS name, convert_from($2, 'UTF8') AS owner,
         $3::bigint * interval '1 microsecond' AS lease
), updated AS (
  UPDATE {shedlock} AS s SET {lock_until} = greatest(s.{lock_until}, {utc} + a.lease), {locked_at} = {utc},
    {locked_by} = a.owner
  FROM asked AS a
  WHERE s.{name} = a.name AND (s.{lock_until} <= {utc} OR s.{locked_by} = a.owner) RETURNING 1
), inserted AS (
  INSERT INTO {shedlock} ({name}, {lock_until}, {locked_at}, {locked_by})
  SELECT a.name, {utc} + a.lease, {utc}, a.owner FROM asked AS a
  WHERE NOT EXISTS (SELECT FROM {shedlock} AS s WHERE s.{name} = a.name)
  ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM updated) + (SELECT count(*) FROM inserted),
       (SELECT (extract(epoch FROM s.{lock_until} - {utc}) * 1000000)::bigint FROM {shedlock} AS s, asked AS a
        WHERE s.{name} = a.name AND isfinite(s.{lock_until}));
