-- What happened since a poller last looked.
-- Parameters: ?1 the last n it saw. Result: n, namespace, space, name.
SELECT n, namespace, space, name FROM lockkit_news WHERE n > ?1 ORDER BY n;
