-- What was written while the clock was ahead ends as long from now.
-- Parameters: ?1 namespace, ?2 name, ?3 when it was written: what came later is left as it is.
UPDATE lockkit_registers
SET expires = expires - set_at + {now}, purge_at = purge_at - set_at + {now}, set_at = {now}
WHERE namespace = ?1 AND name = ?2 AND set_at = ?3 AND set_at > {now};
