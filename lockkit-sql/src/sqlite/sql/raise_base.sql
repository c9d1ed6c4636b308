-- Raises what is added to the tokens of a namespace.
-- Parameters: ?1 namespace, ?2 base.
INSERT INTO lockkit_bases (namespace, base) VALUES (?1, ?2)
ON CONFLICT (namespace) DO UPDATE SET base = max(base, excluded.base);
