-- What changed of a claim.
-- Parameters: the columns.
UPDATE lockkit_claims
SET token = :token, weight = :weight, hold_ttl = :hold_ttl, wait_ttl = :wait_ttl, asked = :asked,
    expires = :expires, held = :held, broken = :broken
WHERE namespace = :namespace AND space = :space AND name = :name AND place = :place;
