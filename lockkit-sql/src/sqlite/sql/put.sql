-- A claim that comes, or what changed of one.
-- Parameters: the columns.
INSERT INTO lockkit_claims
  (namespace, space, name, sequence, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked,
   expires, held, broken, identity, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
ON CONFLICT (namespace, space, name, sequence) DO UPDATE
SET token = ?5, weight = ?7, hold_ttl = ?9, wait_ttl = ?10, asked = ?12, expires = ?13, held = ?14,
    broken = ?15;
