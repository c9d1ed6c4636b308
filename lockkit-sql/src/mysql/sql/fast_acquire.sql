-- Takes a name that no claim holds or waits for: one row.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 id, ?5 weight, ?6 capacity, ?7 hold_ttl,
-- ?8 wait_ttl, ?10 identity, ?11 note. Result: one row changed, and its token as the last insert id;
-- none when it is in use.
UPDATE lockkit_names
SET id = ?4, weight = ?5, capacity = ?6, hold_ttl = ?7, wait_ttl = ?8, identity = ?10, note = ?11,
    since = {now}, set_at = {now}, expires = {now} + ?7, last = LAST_INSERT_ID(GREATEST(last + 1, {now}))
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND has_claim_rows = 0 AND expires <= {now};
