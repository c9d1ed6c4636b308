-- The one row of lockkit_meta.
-- Parameters: ?1 version, ?2 boot id, ?3 the first token less one.
INSERT INTO lockkit_meta (one, version, boot, epoch, token, ceiling) VALUES (1, ?1, ?2, 1, ?3, ?3);
