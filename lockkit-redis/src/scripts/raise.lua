-- Makes sure that no later claim of this list gets less than a token, and that this claim has it at
-- least; renews the claim. Those in line behind it get greater ones, in their order.
--
-- KEYS[1]  the lock          KEYS[2]  the counter of tokens of its bucket
-- ARGV[1…3]  the claim's id, its hold ttl and its wait ttl in ms    ARGV[4]  the token, 19 digits
--
-- What `renew` in line.lua says.
local clock = redis.call('TIME')

-- #include line.lua

local function raise()
  local list, last = demand(KEYS[1]), last_token(KEYS[2])
  insist(list)
  local function count_up()
    if not last or last < ARGV[4] then redis.call('SET', KEYS[2], ARGV[4]) end
  end

  if list.alone then
    if list.alone.id ~= ARGV[1] then return ended(list, ARGV[1]) end
    count_up()
    return renew_alone(KEYS[1], list.alone, ARGV[2], ARGV[4])
  end

  open(list)
  local answer = renew(list, ARGV[1], ARGV[2], ARGV[3])
  if type(answer) == 'string' or (type(answer) == 'table' and answer[2]) then
    count_up()
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
end

return speak(attempt(raise))
