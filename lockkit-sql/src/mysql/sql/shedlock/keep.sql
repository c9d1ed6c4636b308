-- Lengthens leases in ShedLock's table, of rows that are their owner's and have not ended.
-- Parameters: ?1 names; ?2 their owners; ?3 leases in microseconds.
-- Rows: the index from 0 of each that is still its owner's.
UPDATE {shedlock}
SET {lock_until} = TIMESTAMPADD(MICROSECOND, CAST(ELT(FIELD({locked_by}, ?2), ?3) AS SIGNED), {utc})
WHERE {name} IN (?1) AND {locked_by} IN (?2) AND {lock_until} > {utc}
  AND {lock_until} < TIMESTAMPADD(MICROSECOND, CAST(ELT(FIELD({locked_by}, ?2), ?3) AS SIGNED), {utc});
SELECT CAST(FIELD({locked_by}, ?2) AS SIGNED) - 1 FROM {shedlock}
WHERE {name} IN (?1) AND {locked_by} IN (?2) AND {lock_until} > {utc}
