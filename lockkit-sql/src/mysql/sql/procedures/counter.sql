-- What is added to the tokens of a namespace, and its neighbours.
-- In: neighbours (NULL: none), which become the namespace's own where it has none.
-- Row, or none: counter, neighbours.
CREATE PROCEDURE lockkit_counter(IN p_namespace VARBINARY(128), IN p_neighbours VARBINARY(512))
SQL SECURITY INVOKER
BEGIN
  IF p_neighbours IS NOT NULL THEN
    INSERT INTO lockkit_counters (namespace, counter, neighbours) VALUES (p_namespace, 0, p_neighbours)
    ON DUPLICATE KEY UPDATE neighbours = COALESCE(neighbours, VALUES(neighbours));
  END IF;
  SELECT counter, neighbours FROM lockkit_counters WHERE namespace = p_namespace;
END
--;
