-- Makes sure that no later claim of this queue gets less than a token, and that this claim has it at
-- least; renews the claim. Claims behind it get greater ones, in their order.
--
-- KEYS[1]  the lock          KEYS[2]  the counter of tokens of its bucket
-- ARGV[1…3]  the claim's id, its hold ttl and its wait ttl in ms    ARGV[4]  the token, 19 digits
--
-- What `renew` in queue.lua says.
local clock = redis.call('TIME')

-- #include claims.lua
-- #include queue.lua

local function raise()
  local queue, last = must_find(KEYS[1]), last_token(KEYS[2])
  write_first(queue)
  local function count_up()
    if not last or last < ARGV[4] then redis.call('SET', KEYS[2], ARGV[4]) end
  end

  if queue.single then
    if queue.single.id ~= ARGV[1] then return claim_end(queue, ARGV[1]) end
    count_up()
    return renew_single(KEYS[1], queue.single, ARGV[2], ARGV[4])
  end

  open(queue)
  local answer = renew(queue, ARGV[1], ARGV[2], ARGV[3])
  if type(answer) == 'string' or (type(answer) == 'table' and answer[2]) then
    count_up()
    local last_one
    for _, sequence in ipairs(sequences(queue)) do
      local c = read_claim(queue, sequence)
      if c.id == ARGV[1] then
        if c.token < ARGV[4] then
          c.token = ARGV[4]
          write_claim(queue, c)
          if type(answer) == 'string' then answer = c.token end
        end
        last_one = c.token
      elseif last_one and not c.holds then
        -- Also behind a claim that gets another token here, which may be greater than one given before.
        if c.token <= last_one then
          c.token = next_token(KEYS[2], last_one)
          write_claim(queue, c)
        end
        last_one = c.token
      end
    end
  end
  close(queue)
  return answer
end

return speak(attempt(raise))
