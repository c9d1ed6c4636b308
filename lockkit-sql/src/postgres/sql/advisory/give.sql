-- Gives an advisory lock of this session back.
-- Parameters: $1 its number; $2 the new `idle_session_timeout`, or NULL to leave it.
SELECT pg_advisory_unlock($1::bigint),
       set_config('idle_session_timeout', coalesce($2::text, current_setting('idle_session_timeout')), false);
