-- Applies items to the index, except those of which it has a newer version, and moves its anchor.
-- ARGV: the anchor at which the feed was read ('' for none), the new anchor, then the items:
-- {"id", "version", "stream", "session", "status", "state", "due"}, without a version: deleted.

local index, known, deadlines = 'pending:index', 'pending:known', 'pending:expiration'

-- The number of members of each key is stored separately, so that a lost key is detected.
local function count(key, change)
  if change ~= 0 and redis.call('HINCRBY', index, 'n:' .. key, change) <= 0 then
    redis.call('HDEL', index, 'n:' .. key)
  end
end

local function sets(item)
  return { 'pending:by-session:' .. item.session, 'pending:by-status:' .. item.status }
end

local function remove(item)
  for _, key in ipairs(sets(item)) do count(key, -redis.call('SREM', key, item.id)) end
  count(deadlines, -redis.call('ZREM', deadlines, item.id))
  redis.call('HDEL', known, item.id)
end

local function add(item, text)
  for _, key in ipairs(sets(item)) do count(key, redis.call('SADD', key, item.id)) end
  if item.due then count(deadlines, redis.call('ZADD', deadlines, item.due, item.id)) end
  redis.call('HSET', known, item.id, text)
end

for n = 3, #ARGV do
  local item = cjson.decode(ARGV[n])
  local text = redis.call('HGET', known, item.id)
  local old = text and cjson.decode(text)
  if not item.version then
    if old then remove(old) end
  elseif not old or old.version < item.version then
    if old then remove(old) end
    add(item, ARGV[n])
  end
end

-- Another process may have moved the anchor meanwhile; then some records are only read twice.
if ARGV[1] ~= '' and redis.call('HGET', index, 'place') == ARGV[1] then
  redis.call('HSET', index, 'place', ARGV[2])
end
