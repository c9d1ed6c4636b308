-- How a script answers: what fails for one claim, values that are not lockkit's, and messages, which
-- are sent last. No script of its own: others include it.

-- Whether this client publishes nothing, since the server refused it before.
local MUTED = false

-- The commands of all scripts that this user may not call, where the server can tell (Redis 7).
local function forbidden()
  local missing, key, allowed = {}, 'lockkit:tokens:{0}', 0
  if not redis.acl_check_cmd then return missing end
  for name in string.gmatch('{commands}', '%u+') do
    -- With arguments: Redis 7.0.15 crashes when it is asked about some commands without them.
    local known, may = pcall(redis.acl_check_cmd, name, key, key, key, key)
    if not (known and may) then
      missing[#missing + 1] = name
    elseif name ~= 'TIME' then
      allowed = allowed + 1
    end
  end
  if allowed == 0 then return { 'anything with a key like ' .. key } end
  return missing
end

-- What fails for one claim costs no other: its error is its answer. Not so when this server is a
-- replica by now, which takes no writes: then that is the answer to all.
local refused
local function attempt(step, ...)
  local done, answer = pcall(step, ...)
  if done then return answer end
  local message = type(answer) == 'table' and answer.err or answer
  if not string.find(message, '^%u+ ') then message = 'ERR ' .. message end
  -- Redis before 7.2 does not say which command it is.
  if string.find(message, "can't run this command", 1, true) then
    local names = table.concat(forbidden(), ', ')
    if names ~= '' then message = 'NOPERM the user may not call ' .. names end
  end
  answer = { err = message }
  if string.find(message, 'READONLY', 1, true) then refused = answer end
  return answer
end

-- A key that lockkit did not write stays as it is: an operation that needs it gets an error that names it.
local function refuse(key)
  error({ err = 'LOCKKIT the key ' .. key .. ' is a ' .. redis.call('TYPE', key).ok
    .. ' that lockkit did not write; nothing was changed' })
end

-- The client whose call this is. That its claims begin to hold it learns from the answer, without a message.
local sender
local carried = {}

-- What is to be published, and about which queue. A queue remembers whether its last message was
-- refused: then its waiters poll.
local messages = {}
local function notify(client, text, queue)
  messages[#messages + 1] = { 'lockkit:wake:' .. string.gsub(client, '^%-', ''), text, queue }
end

-- A claim of this client holds from now on: the answer says so, or a message to its client.
local function tell(client, id, token, queue)
  if sender and string.gsub(client, '^%-', '') == sender then
    carried[id] = token
  else
    notify(client, 'granted ' .. id .. ' ' .. token, queue)
  end
end

-- The last act of a script. Where claims of the sender began to hold, and still do, its answer is
-- {"granted", {ID, TOKEN, …}, ANSWER}. A message that the server refuses changes no answer:
-- {"unpublished", WHY, ANSWER} when one was.
local function speak(answer)
  local why
  if next(carried) then
    local grants = {}
    for id, token in pairs(carried) do
      grants[#grants + 1] = id
      grants[#grants + 1] = token
    end
    answer = { 'granted', grants, answer }
  end
  for _, message in ipairs(messages) do
    local channel, text, queue = message[1], message[2], message[3]
    if not MUTED then
      local sent = redis.pcall('PUBLISH', channel, text)
      if type(sent) == 'table' and sent.err then MUTED, why = true, sent.err end
    end
    if queue and MUTED and redis.call('TYPE', queue.key).ok == 'hash' then
      redis.pcall('HSET', queue.key, 'unpublished', '1')
    elseif queue and queue.unpublished and not MUTED then
      redis.pcall('HDEL', queue.key, 'unpublished')
    end
  end
  return why and { 'unpublished', why, answer } or answer
end
