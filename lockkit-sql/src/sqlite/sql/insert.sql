-- A claim that comes. Parameters: the columns.
INSERT INTO lockkit_claims
  (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked,
   expires, held, identity, note)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12, ?13, ?14);
