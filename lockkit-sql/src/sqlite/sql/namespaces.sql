-- The namespaces in which a claim is live or a register has a value.
-- Parameters: ?1 namespace to begin with, ?2 how many, ?3 now.
SELECT namespace FROM lockkit_claims WHERE namespace >= ?1 AND expires > ?3
UNION
SELECT namespace FROM lockkit_registers
WHERE namespace >= ?1 AND value IS NOT NULL AND (expires IS NULL OR expires > ?3)
ORDER BY namespace LIMIT ?2;
