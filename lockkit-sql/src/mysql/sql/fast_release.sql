-- Takes out a claim that is alone in its queue.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 id. Result: one row changed; none when it is not
-- there, or not alone.
-- The id stays, though the claim has left: so the row keeps its length, and InnoDB writes both this
-- and the next acquire where it stands.
UPDATE lockkit_names SET expires = 0
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND id = ?4 AND expires > {now};
