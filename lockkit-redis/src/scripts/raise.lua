-- Makes sure that no later claim of this list gets less than a token, and that this claim has it at
-- least; renews the claim. Those in line behind it get greater ones, in their order.
--
-- KEYS[1]  the lock          KEYS[2]  the counter of tokens of its bucket
-- ARGV[1…3]  the claim's id, its hold ttl and its wait ttl in ms    ARGV[4]  the token, 19 digits
--
-- What `renew` in line.lua says.

-- #include line.lua

local function count_up(token)
  local last = redis.call('GET', KEYS[2])
  if not last or last < token then redis.call('SET', KEYS[2], token) end
end

insist(KEYS[1])
local alone = redis.pcall('GET', KEYS[1])
if type(alone) == 'string' then
  if string.sub(alone, 1, 32) ~= ARGV[1] then
    local record = redis.call('HGET', names(KEYS[1]).broken, ARGV[1])
    return record and { record } or 0
  end
  local left = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2]))
  local token = string.sub(alone, 34, 52)
  if token < ARGV[4] then token = ARGV[4] end
  redis.call('SET', KEYS[1], string.sub(alone, 1, 33) .. token .. string.sub(alone, 53), 'PX',
    string.format('%.0f', left))
  count_up(ARGV[4])
  return token
end

local list = open(KEYS[1])
local answer = renew(list, ARGV[1], ARGV[2], ARGV[3])
if type(answer) == 'string' or (type(answer) == 'table' and answer[2]) then
  count_up(ARGV[4])
  local behind = false
  for rank, id in ipairs(redis.call('ZRANGE', list.line, 0, -1)) do
    local c = read_claim(list, id)
    if id == ARGV[1] and c.token < ARGV[4] then
      behind = true
      c.token = ARGV[4]
      write_claim(list, id, c)
      if type(answer) == 'string' then answer = c.token end
    elseif behind and rank > list.holders and c.token <= ARGV[4] then
      c.token = next_token(KEYS[2], ARGV[4])
      write_claim(list, id, c)
    end
  end
end
close(list)
return answer
