-- What the session of the advisory locks works with. Row: the server's version, its own `idle_session_timeout`
-- (NULL where it has none).
SELECT current_setting('server_version_num')::int, current_setting('idle_session_timeout', true);
