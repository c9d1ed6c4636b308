-- Takes out a claim that is alone in its list.
-- Parameters: namespace, space, name, id. Result: one row changed; none when it is not there, or not
-- alone.
UPDATE lockkit_names SET id = NULL, expires = 0
WHERE namespace = ? AND space = ? AND name = ? AND id = ?
  AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
