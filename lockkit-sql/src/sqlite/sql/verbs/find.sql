-- Finds a claim in its list: a waiter by the index, a holder among the holders.
-- Columns: id, namespace, space, name.
-- Result: place in lockkit_answer; NULL: it is not there.
CREATE TEMP VIEW lockkit_find AS
SELECT NULL AS id, NULL AS namespace, NULL AS space, NULL AS name;

CREATE TEMP TRIGGER lockkit_on_find INSTEAD OF INSERT ON lockkit_find BEGIN
  UPDATE lockkit_answer SET place = coalesce(
    (SELECT place FROM lockkit_claims
     WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name
       AND place < coalesce(
         (SELECT place FROM lockkit_claims
          WHERE namespace = NEW.namespace AND space = NEW.space AND name = NEW.name AND +held IS NULL
          ORDER BY place LIMIT 1), 9223372036854775807)
       AND id = NEW.id AND expires > 0 LIMIT 1),
    (SELECT place FROM lockkit_claims
     WHERE id = NEW.id AND held IS NULL
       AND +namespace = NEW.namespace AND +space = NEW.space AND +name = NEW.name));
END;
