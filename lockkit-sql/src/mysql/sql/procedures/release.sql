-- One release: `lockkit_dequeue` as a transaction of its own.
-- Row: outcome, as of there; woken; has_claim_rows: 1 when others are in the queue, or it has a limit.
CREATE PROCEDURE lockkit_release(
  IN p_namespace VARBINARY(128), IN p_space TINYINT, IN p_name VARBINARY(512), IN p_id BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_outcome, v_uncontended TINYINT;
  DECLARE v_woken BLOB DEFAULT '';
  {transaction}
  CALL lockkit_dequeue(p_namespace, p_space, p_name, p_id, v_outcome, v_woken, v_uncontended);
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_outcome AS outcome, v_woken AS woken, NOT v_uncontended AS has_claim_rows;
END
--;
