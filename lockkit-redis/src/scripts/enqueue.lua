-- The general way of an acquire. No script of its own: behind queue.lua. Answers as acquire.lua does.

-- For a claim that is in the queue already: the answer was lost.
local function acquire_again(queue, id, hold, wait, try)
  local state = renew(queue, id, hold, wait)
  if type(state) == 'string' then return state end
  if not state[2] then return { 'broken', state[1] } end
  if not try then return { 'waits', state[1], state[2] } end
  remove(queue, find_claim(queue, id))
  promote(queue, id)
  return { 'busy' }
end

-- `token` is the least that it may get. With `taken` it has the lock as one string, and gets a token of the
-- counter's choice.
local function acquire(key, counter, text, ttl, token, options, taken)
  local id, hold, wait, client, label = string.match(text, '^ (%x+) (%d+) (%d+) (%S+) (.*)$')
  sender = string.gsub(client, '^%-', '')
  local try, mode = string.match(options, '^(t?) ?(%a?)')
  local weight, capacity = string.match(options, '(%d+) (%d+)$')
  local exclusive = mode == ''
  weight, capacity = tonumber(weight or CAPACITY), tonumber(capacity or CAPACITY)
  try = try == 't'

  -- The lock as one string, with a token of the counter's choice.
  local function take_single()
    local chosen = next_token(counter, token)
    redis.call('SET', key, chosen .. text, 'PX', ttl)
    return chosen
  end

  if taken then return take_single() end

  local queue = must_find(key)
  last_token(counter) -- an error, before anything is written, when it is no counter
  if queue.single and (try or queue.single.id == id) then
    if queue.single.id == id then return renew_single(key, queue.single, ttl) end
    local remaining = left_of_single(key, queue.single)
    if remaining < redis.call('PTTL', key) then redis.call('PEXPIRE', key, string.format('%.0f', remaining)) end
    return { 'busy' }
  end
  open(queue, id)

  if redis.call('HEXISTS', key, id) == 1 then
    local answer = acquire_again(queue, id, hold, wait, try)
    close(queue)
    return answer
  end

  if queue.count == 0 then
    redis.call('DEL', queue.key)
    queue.expires = 0
    if exclusive then return take_single() end
    queue.capacity = mode == 'p' and fixed_limit(queue) or capacity
  end
  if queue.capacity ~= capacity then
    local in_use = queue.capacity
    close(queue)
    return { 'limit', in_use }
  end

  local holds = queue.count == queue.holders and queue.weight + weight <= capacity
  if try and not holds then
    close(queue)
    return { 'busy' }
  end

  local answer = next_token(counter, token)
  local c = { id = id, mode = exclusive and 'x' or mode, token = answer, weight = weight, hold = hold, wait = wait,
              client = client, queued = string.sub(padded(now_us), -16), held = WAITING, broken = '0', label = label }
  append(queue, c, holds and hold or wait)
  promote(queue, id)
  if c.sequence >= queue.waiter then
    local state = renew(queue, id, hold, wait)
    answer = { 'waits', state[1], state[2] }
  end
  close(queue)
  return answer
end
