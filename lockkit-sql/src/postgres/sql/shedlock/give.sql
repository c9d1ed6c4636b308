-- Ends a lease in ShedLock's table, if it is this owner's.
-- Parameters: $1 name; $2 owner.
UPDATE {shedlock} SET {lock_until} = {utc}
WHERE {name} = convert_from($1, 'UTF8') AND {locked_by} = convert_from($2, 'UTF8') AND {lock_until} > {utc};
