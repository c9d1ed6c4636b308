-- The general way of a release. No script of its own: behind queue.lua.
--   1 it was removed    2 it was not there, others are, or the key is not lockkit's    3 the queue is empty
local function release(key, id)
  local queue = find(key)
  if not queue or queue.kind == 'string' then return 2 end
  if queue.kind == 'none' then return 3 end
  write_first(queue)
  open(queue)
  local removed = remove(queue, id)
  if removed then promote(queue) end
  local left = redis.call('ZCARD', queue.claims)
  close(queue)
  return removed and 1 or (left > 0 and 2 or 3)
end
