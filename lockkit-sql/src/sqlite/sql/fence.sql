-- Takes the file's write lock and checks that a claim holds; changes nothing.
-- Parameters: ?1 namespace, ?2 space, ?3 name, ?4 id. One row is affected if it holds.
--
-- A statement that writes, so that the transaction has the write lock even where no row is found.
-- Times are not read: a claim whose lease has ended holds until a writer removes it.
UPDATE lockkit_claims SET id = id
WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND id = ?4 AND held IS NOT NULL AND expires > 0;
