-- Lengthens leases in ShedLock's table, of rows that are their owner's and have not ended.
-- Parameters: $1 names; $2 their owners; $3 leases in microseconds.
-- Rows: the index from 0 of each that is still its owner's.
UPDATE {shedlock} AS s SET {lock_until} = greatest(s.{lock_until}, {utc} + a.lease * interval '1 microsecond')
FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) WITH ORDINALITY AS a (name, owner, lease, n)
WHERE s.{name} = convert_from(a.name, 'UTF8') AND s.{locked_by} = convert_from(a.owner, 'UTF8')
  AND s.{lock_until} > {utc}
RETURNING a.n - 1;
