-- Raises the counter of a namespace, which is never lowered.
-- Parameters: ?1 namespace, ?2 counter.
INSERT INTO lockkit_counters (namespace, counter) VALUES (?1, ?2)
ON DUPLICATE KEY UPDATE counter = GREATEST(counter, VALUES(counter));
