-- The namespaces of lists and registers, also of those that are not in use now. Each part goes from
-- one namespace to the next by the primary key.
-- Parameters: namespace to begin with, how many, the same again, how many. Column: namespace.
(SELECT DISTINCT namespace FROM lockkit_names WHERE namespace >= ? ORDER BY namespace LIMIT ?)
UNION
(SELECT DISTINCT namespace FROM lockkit_registers WHERE namespace >= ? ORDER BY namespace LIMIT ?)
ORDER BY namespace LIMIT ?;
