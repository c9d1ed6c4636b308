-- The answer of the verb that ran just before, from this connection's own memory.
-- Result: outcome, token, held, ahead, ttl; promoted: the ids of the new holders, JSON of hex.
SELECT outcome, token, held, ahead, ttl,
       (SELECT json_group_array(hex(id)) FROM temp.lockkit_promoted) AS promoted
FROM temp.lockkit_answer;
