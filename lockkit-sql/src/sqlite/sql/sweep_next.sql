-- Where the next bite of a sweep begins.
-- Parameters: ?1 ?2 ?3 where this one began, ?4 its size. Result: namespace, space, name; no row at
-- the end.
SELECT namespace, space, name FROM (
  SELECT namespace, space, name FROM lockkit_claims
  WHERE (namespace, space, name) > (?1, ?2, ?3)
  ORDER BY namespace, space, name LIMIT ?4)
ORDER BY namespace DESC, space DESC, name DESC LIMIT 1;
