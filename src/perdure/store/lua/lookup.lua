-- Returns the anchor of the index, then the item of each member of these keys.
-- ARGV: the largest number of members, the latest deadline ('' for sets), then the keys.
-- Empty if there is no index, or a key does not have the stored number of members. A single number: there
-- are more members than the largest number.

local index, known = 'pending:index', 'pending:known'
local most, latest = tonumber(ARGV[1]), ARGV[2]
local place = redis.call('HGET', index, 'place')
if not place then return {} end

local reply = { place }
for n = 3, #ARGV do
  local key = ARGV[n]
  local is_sorted = latest ~= ''
  local size = redis.call(is_sorted and 'ZCARD' or 'SCARD', key)
  if size ~= tonumber(redis.call('HGET', index, 'n:' .. key) or '0') then return {} end
  local matches = is_sorted and redis.call('ZCOUNT', key, '-inf', latest) or size
  if matches + #reply > most then return { matches } end
  local members = is_sorted and redis.call('ZRANGEBYSCORE', key, '-inf', latest)
    or redis.call('SMEMBERS', key)
  for _, id in ipairs(members) do
    reply[#reply + 1] = redis.call('HGET', known, id) or id
  end
end
return reply
