-- Lets a list move on: removes the holders that have ended, then walks along the first waiters,
-- removing the ended ones and making holders of those who fit, up to the first that must wait.
-- Columns: namespace, space, name: the list; now.
-- Result: the ids of the new holders in lockkit_promoted, which the caller empties before.
--
-- (CROSS JOIN keeps SQLite from turning the loops around, `+held` from walking the index of all
-- waiters where the list's own order is at hand: either made a release as slow as its queue is
-- long.)
--
-- Costs one look at each holder and one step for each waiter that leaves or begins to hold; those
-- behind are not looked at. `expires` of a new holder counts from `asked` where that is later:
-- `now` may have been read long before this runs, the owner of the claim counts his own lease from
-- his own last request, and what he believes must not outlast what stands here.
CREATE TEMP VIEW lockkit_settle AS
SELECT NULL AS namespace, NULL AS space, NULL AS name, NULL AS now;

CREATE TEMP TRIGGER lockkit_on_settle INSTEAD OF INSERT ON lockkit_settle BEGIN
  -- If the last row is about to go, the floor remembers its place.
  UPDATE lockkit_meta SET token = last.place
  FROM (SELECT place, expires FROM lockkit_claims
        WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
        ORDER BY place DESC LIMIT 1) AS last
  WHERE last.expires <= NEW.now AND last.place > token;

  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place < coalesce(
      (SELECT place FROM lockkit_claims
       WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name AND +held IS NULL
       ORDER BY place LIMIT 1), 9223372036854775807)
    AND expires <= NEW.now;

  DELETE FROM lockkit_front;
  INSERT INTO lockkit_front
  SELECT place, live, fits FROM (
    WITH RECURSIVE
      first(place) AS (
        SELECT place FROM lockkit_claims
        WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name AND +held IS NULL
        ORDER BY place LIMIT 1),
      walk(place, live, used, fits) AS (
        SELECT c.place, c.expires > NEW.now,
               h.used + CASE WHEN c.expires > NEW.now THEN c.weight ELSE 0 END,
               h.used + c.weight <= c.capacity
        FROM first
        CROSS JOIN lockkit_claims AS c
          ON c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
         AND c.place = first.place
        JOIN (SELECT coalesce(sum(weight), 0) AS used FROM lockkit_claims
              WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
                AND place < (SELECT place FROM first)) AS h
        UNION ALL
        SELECT c.place, c.expires > NEW.now,
               walk.used + CASE WHEN c.expires > NEW.now THEN c.weight ELSE 0 END,
               walk.used + c.weight <= c.capacity
        FROM walk
        CROSS JOIN lockkit_claims AS c
          ON c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
         AND c.place = (SELECT place FROM lockkit_claims
                        WHERE namespace = NEW.namespace AND space = NEW.space
                          AND name = NEW.name AND place > walk.place
                        ORDER BY place LIMIT 1)
        WHERE walk.fits OR NOT walk.live)
    SELECT place, live, fits FROM walk);

  INSERT INTO lockkit_promoted
  SELECT c.id FROM lockkit_front AS f
  CROSS JOIN lockkit_claims AS c
    ON c.namespace = NEW.namespace AND c.space = NEW.space AND c.name = NEW.name
   AND c.place = f.place
  WHERE f.live AND f.fits;

  DELETE FROM lockkit_claims
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place IN (SELECT place FROM lockkit_front WHERE NOT live);

  UPDATE lockkit_claims
  SET held = NEW.now,
      expires = CASE WHEN broken THEN expires
                     ELSE max(expires, max(asked, NEW.now) + hold_ttl) END
  WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
    AND place IN (SELECT place FROM lockkit_front WHERE live AND fits);

  INSERT INTO lockkit_news (namespace, space, name)
  SELECT NEW.namespace, NEW.space, NEW.name
  WHERE EXISTS (SELECT 1 FROM lockkit_front WHERE fits OR NOT live);
  DELETE FROM lockkit_news WHERE n <= (SELECT max(n) FROM lockkit_news) - 1024;
END;
