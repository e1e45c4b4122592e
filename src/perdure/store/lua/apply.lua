-- Brings the index to these entries, unless it knows a newer version of one, and moves it on.
-- ARGV: the place it was read at ('' for none), the place it stands at then, then the items:
-- {"id", "version", "stream", "session", "status", "state", "due"}, without a version: deleted.

local index, known, deadlines = 'pending:index', 'pending:known', 'pending:expiration'

-- How many members a key should have is counted beside it: a key that is lost is noticed so.
local function counted(key, change)
  if change ~= 0 and redis.call('HINCRBY', index, 'n:' .. key, change) <= 0 then
    redis.call('HDEL', index, 'n:' .. key)
  end
end

local function sets(item)
  return { 'pending:by-session:' .. item.session, 'pending:by-status:' .. item.status }
end

local function leave(item)
  for _, key in ipairs(sets(item)) do counted(key, -redis.call('SREM', key, item.id)) end
  counted(deadlines, -redis.call('ZREM', deadlines, item.id))
  redis.call('HDEL', known, item.id)
end

local function enter(item, text)
  for _, key in ipairs(sets(item)) do counted(key, redis.call('SADD', key, item.id)) end
  if item.due then counted(deadlines, redis.call('ZADD', deadlines, item.due, item.id)) end
  redis.call('HSET', known, item.id, text)
end

for n = 3, #ARGV do
  local item = cjson.decode(ARGV[n])
  local text = redis.call('HGET', known, item.id)
  local old = text and cjson.decode(text)
  if not item.version then
    if old then leave(old) end
  elseif not old or old.version < item.version then
    if old then leave(old) end
    enter(item, ARGV[n])
  end
end

-- Somebody else may have moved it on meanwhile: then what comes after that is only read twice.
if ARGV[1] ~= '' and redis.call('HGET', index, 'place') == ARGV[1] then
  redis.call('HSET', index, 'place', ARGV[2])
end
