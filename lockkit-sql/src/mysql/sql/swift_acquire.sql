-- Takes a name that nobody has and nobody waits for: one row.
-- Parameters: id, weight, capacity, hold_ttl, wait_ttl, identity, note, hold_ttl, namespace, space,
-- name. Result: one row changed, and its token as the last insert id; none when it is in use.
UPDATE lockkit_names
SET id = ?, weight = ?, capacity = ?, hold_ttl = ?, wait_ttl = ?, identity = ?, note = ?,
    since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
    expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
    last = LAST_INSERT_ID(
      GREATEST(last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))))
WHERE namespace = ? AND space = ? AND name = ? AND crowd = 0
  AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
