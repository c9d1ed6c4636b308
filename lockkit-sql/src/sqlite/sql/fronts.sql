-- Of each queue with changes: the claims that hold, and the first that waits.
-- Parameters: ?1 the number after which changes are read. Result: ids.
SELECT c.id FROM (SELECT DISTINCT namespace, space, name FROM lockkit_changes WHERE n > ?1) AS l
JOIN lockkit_claims AS c USING (namespace, space, name)
WHERE c.sequence <= ifnull((SELECT w.sequence FROM lockkit_claims AS w
                         WHERE w.namespace = l.namespace AND w.space = l.space AND w.name = l.name
                           AND w.held IS NULL ORDER BY w.sequence LIMIT 1), 9223372036854775807);
