-- One claim, and how it was broken if it was.
-- Parameters: ?1 id. Result: token, held, hold_ttl (NULL: it is not there), record.
SELECT c.token, c.held, c.hold_ttl, b.record
FROM (SELECT ?1 AS id) AS ask
LEFT JOIN lockkit_claims AS c ON c.id = ask.id
LEFT JOIN lockkit_breaks AS b ON b.n = (SELECT max(n) FROM lockkit_breaks WHERE id = ask.id);
