-- What changed of a claim. Parameters: the columns.
UPDATE lockkit_claims
SET token = ?5, weight = ?6, hold_ttl = ?7, wait_ttl = ?8, asked = ?9, expires = ?10, held = ?11,
    broken = ?12
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place = ?4;
