-- What the index knows of the members of these keys, and the place it stands at.
-- ARGV: the most members wanted, the latest deadline ('' where sets are asked), then the keys.
-- Answers the place, then what is known of each member; nothing where there is no index, or a key
-- has another number of members than it should. One number alone: there are more than are wanted.

local index, known = 'pending:index', 'pending:known'
local most, latest = tonumber(ARGV[1]), ARGV[2]
local place = redis.call('HGET', index, 'place')
if not place then return {} end

local answer = { place }
for n = 3, #ARGV do
  local key = ARGV[n]
  local is_sorted = latest ~= ''
  local size = redis.call(is_sorted and 'ZCARD' or 'SCARD', key)
  if size ~= tonumber(redis.call('HGET', index, 'n:' .. key) or '0') then return {} end
  local wanted = is_sorted and redis.call('ZCOUNT', key, '-inf', latest) or size
  if wanted + #answer > most then return { wanted } end
  local members = is_sorted and redis.call('ZRANGEBYSCORE', key, '-inf', latest)
    or redis.call('SMEMBERS', key)
  for _, id in ipairs(members) do
    answer[#answer + 1] = redis.call('HGET', known, id) or id
  end
end
return answer
