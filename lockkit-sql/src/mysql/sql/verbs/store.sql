-- What clients of versions 1 and 2 call, which do not say that they repeat a write.
-- In, and row: as of `lockkit_write`.
CREATE PROCEDURE lockkit_store(
  IN p_namespace VARBINARY(128), IN p_name VARBINARY(512), IN p_value MEDIUMBLOB,
  IN p_expect TINYINT, IN p_version BIGINT, IN p_token BIGINT, IN p_write_id BINARY(16),
  IN p_ttl BIGINT, IN p_grace BIGINT)
SQL SECURITY INVOKER
BEGIN
  CALL lockkit_write(p_namespace, p_name, p_value, p_expect, p_version, p_token, p_write_id, p_ttl,
                     p_grace, 0);
END
--;
