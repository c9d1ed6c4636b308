-- Takes out a claim that is alone in its queue: one row. Does the whole work where it is not, in the
-- same message.
-- Arguments: `StatementId::Release`. Row: 1; or else the bytes of `release_packed`; {settings}.
WITH freed AS (
  UPDATE {p}names AS n SET id = NULL, expires = 0
  WHERE n.namespace = $1 AND n.space = $2::smallint AND n.name = $3
    AND n.id = $4 AND n.expires > {p}clock()
  RETURNING 1::bigint AS one
)
SELECT (SELECT one FROM freed),
       CASE WHEN NOT EXISTS (SELECT FROM freed) THEN {p}release_packed($1, $2, $3, $4, $5) END,
       {settings}
