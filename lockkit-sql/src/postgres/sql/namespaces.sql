-- The namespaces of queues and registers, also of those that are not in use now. Arguments and result:
-- `StatementId::Namespaces`. Goes from one namespace to the next by the primary keys, and no further than
-- the limit: the rows of a recursion are made as they are fetched.
WITH RECURSIVE found (namespace) AS (
  SELECT least(
    (SELECT n.namespace FROM {p}names AS n WHERE n.namespace >= $1 ORDER BY 1 LIMIT 1),
    (SELECT r.namespace FROM {p}registers AS r WHERE r.namespace >= $1 ORDER BY 1 LIMIT 1))
  UNION ALL
  SELECT least(
    (SELECT n.namespace FROM {p}names AS n WHERE n.namespace > f.namespace ORDER BY 1 LIMIT 1),
    (SELECT r.namespace FROM {p}registers AS r WHERE r.namespace > f.namespace ORDER BY 1 LIMIT 1))
  FROM found AS f WHERE f.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL LIMIT $2
