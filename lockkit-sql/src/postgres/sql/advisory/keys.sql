-- The numbers of advisory locks, in the order asked for.
-- Parameters: $1 numbers, some NULL; $2 names, of which the server makes those.
SELECT coalesce(n.number, hashtext(n.name)::bigint)
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS n (number, name, at) ORDER BY n.at;
