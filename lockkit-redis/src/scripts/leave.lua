-- The general way of a release. No script of its own: behind queue.lua.
--   1 it was removed    2 it was not there, others are, or the key is not lockkit's    3 the queue is empty
local function release(key, id)
  local queue = find(key)
  if not queue or queue.kind == 'string' then return 2 end
  if queue.kind == 'none' then return 3 end
  write_first(queue)
  open(queue)
  local c = find_claim(queue, id)
  if c then
    remove(queue, c)
    promote(queue)
  end
  close(queue)
  return c and 1 or (queue.count > 0 and 2 or 3)
end
