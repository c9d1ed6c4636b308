-- The namespaces of queues and registers, also of those that are not in use now. Each part goes from
-- one namespace to the next by the primary key.
-- Parameters: ?1 namespace to begin with, ?2 how many. Column: namespace.
(SELECT DISTINCT namespace FROM lockkit_names WHERE namespace >= ?1 ORDER BY namespace LIMIT ?2)
UNION
(SELECT DISTINCT namespace FROM lockkit_registers WHERE namespace >= ?1 ORDER BY namespace LIMIT ?2)
ORDER BY namespace LIMIT ?2;
