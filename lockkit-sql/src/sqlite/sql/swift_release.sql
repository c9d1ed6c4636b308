-- Takes out a claim that is alone in its list; its row stays and remembers the last place.
-- Parameters: ?1 id, ?2 namespace, ?3 space, ?4 name, ?5 now, ?6 epoch.
-- Result: one change; none when it is not there, or not alone.
UPDATE lockkit_claims SET expires = 0, held = coalesce(held, ?5)
WHERE namespace = ?2 AND space = ?3 AND name = ?4 AND id = ?1 AND expires > ?5
  AND place = (SELECT max(place) FROM lockkit_claims
               WHERE namespace = ?2 AND space = ?3 AND name = ?4)
  AND place = (SELECT min(place) FROM lockkit_claims
               WHERE namespace = ?2 AND space = ?3 AND name = ?4)
  AND (SELECT epoch FROM lockkit_meta) = ?6;
