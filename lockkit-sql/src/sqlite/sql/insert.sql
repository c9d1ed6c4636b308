-- A claim that comes.
-- Parameters: the columns; :place is the token as well, :now the moment in which it came.
INSERT INTO lockkit_claims
  (namespace, space, name, place, token, id, weight, capacity, hold_ttl, wait_ttl, queued, asked,
   expires, held, identity, note)
VALUES (:namespace, :space, :name, :place, :place, :id, :weight, :capacity, :hold_ttl, :wait_ttl,
        :now, :now, :expires, :held, :identity, :note);
