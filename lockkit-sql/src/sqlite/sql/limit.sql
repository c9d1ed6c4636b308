-- The limit of a semaphore: the one that it was given, or else the one that it is in use with.
-- Parameters: ?1 namespace, ?2 name, ?3 now. Result: capacity (NULL: it has none).
SELECT coalesce(
  (SELECT capacity FROM lockkit_limits WHERE namespace = ?1 AND name = ?2),
  (SELECT capacity FROM lockkit_claims
   WHERE namespace = ?1 AND space = 1 AND name = ?2 AND expires > ?3 ORDER BY place LIMIT 1));
