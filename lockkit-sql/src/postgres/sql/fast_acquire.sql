-- Takes a name that no claim holds or waits for: one row. Does the whole work where that is not
-- so, in the same message. A claim to more than the limit may wait, but never takes a free name as it
-- is.
-- Arguments: `StatementId::Acquire`. Row: the token; or else the bytes of `acquire_packed`; {settings}.
WITH taken AS (
  UPDATE {p}names AS n
  SET used = {p}clock(), last = greatest(n.last + 1, {p}clock()), expires = {p}clock() + $7,
      set_at = {p}clock(), id = $4, weight = $5, capacity = $6, hold_ttl = $7, wait_ttl = $8,
      identity = $10, note = $11
  WHERE n.namespace = $1 AND n.space = $2::smallint AND n.name = $3
    AND NOT n.has_claim_rows AND n.expires <= {p}clock() AND $5 <= $6
  RETURNING n.last
)
SELECT (SELECT last FROM taken),
       CASE WHEN NOT EXISTS (SELECT FROM taken)
            THEN {p}acquire_packed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) END,
       {settings}
