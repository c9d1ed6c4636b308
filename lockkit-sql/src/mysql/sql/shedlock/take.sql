-- Takes a row of ShedLock's table, if it is free or this owner's: three statements, the first two of which take it
-- each by itself. ShedLock remembers that a row is there and never inserts it again, so rows are not removed.
-- Parameters: ?1 name; ?2 owner; ?3 the lease in microseconds.
-- Row: 1 when it is this owner's; what is left of its lease in microseconds.
INSERT IGNORE INTO {shedlock} ({name}, {lock_until}, {locked_at}, {locked_by})
VALUES (?1, TIMESTAMPADD(MICROSECOND, ?3, {utc}), {utc}, ?2);
UPDATE {shedlock} SET {lock_until} = TIMESTAMPADD(MICROSECOND, ?3, {utc}), {locked_at} = {utc}, {locked_by} = ?2
WHERE {name} = ?1 AND {lock_until} < TIMESTAMPADD(MICROSECOND, ?3, {utc})
  AND ({lock_until} <= {utc} OR {locked_by} = ?2);
SELECT {locked_by} = ?2 AND {lock_until} > {utc}, TIMESTAMPDIFF(MICROSECOND, {utc}, {lock_until})
FROM {shedlock} WHERE {name} = ?1
