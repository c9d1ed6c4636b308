-- The last break of one list.
-- Parameters: ?1 namespace, ?2 space, ?3 name. Result: record.
SELECT record FROM lockkit_breaks
WHERE namespace = ?1 AND space = ?2 AND name = ?3 ORDER BY n DESC LIMIT 1;
