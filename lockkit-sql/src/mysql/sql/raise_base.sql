-- Raises the base of a namespace, which is never lowered.
-- Parameters: ?1 namespace, ?2 base.
INSERT INTO lockkit_bases (namespace, base) VALUES (?1, ?2)
ON DUPLICATE KEY UPDATE base = GREATEST(base, VALUES(base));
