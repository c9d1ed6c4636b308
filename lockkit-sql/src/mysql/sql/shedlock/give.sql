-- Ends a lease in ShedLock's table, if it is this owner's.
-- Parameters: ?1 name; ?2 owner.
UPDATE {shedlock} SET {lock_until} = {utc} WHERE {name} = ?1 AND {locked_by} = ?2 AND {lock_until} > {utc}
