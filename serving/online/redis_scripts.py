"""Scripts that run inside Redis: one a step, so that each step happens whole or not at all.

Keys after the prefix:

    schema, place         version of this layout; the place of the newest event
    events                stream of all events, id ``<place>-0``, fields i, u, h, p
    ids                   set of the event ids that are in the stream
    places:<user>         list of the places of a user's events, ascending
    recent:<user>         list of the newest of them that are of a history, by (time, place)
    impressions:<user>    the same of impressions
    refusals:<user>       the same of hides, dislikes and undos
    topics:<user>         JSON of the topics that a user said
    request:<id>          a served list
    requests              sorted set of all ids of served lists; all scores are 0, ids ascend
    lists:<user>          the same of a user's, each id followed by the JSON of the items shown
    items, items_version  hash of the changed items; number of changes
    hidden                set of the items that are hidden as of hidden_version
    forgotten             hash of a user's hashed id to when the user was forgotten
    last_forgotten        the latest of these moments
    user_key              key that ids are hashed with, unless it comes with the environment
    user_key_names        set of the names of the keys of forgotten

Field h is ``time_ms event_type item_id``, p the JSON of [received_ms, value, request_id, slot,
domain, session_id] less nulls at its end; an element of recent, impressions and
refusals is h, a space and the place. Keys are made inside the scripts: a Redis Cluster is not
supported.
"""

from __future__ import annotations

from hashlib import sha1

SHARED = """
local prefix = ARGV[1]

local function time_of(element)
  return tonumber(string.match(element, '^%d+'))
end

local function key_of(user, recent)
  local kind = string.match(recent, '^%d+ (%S+) ')
  if kind == 'impression' then
    return prefix .. 'impressions:' .. user
  end
  local refuses = kind == 'hide' or kind == 'dislike' or kind == 'undo'
  return prefix .. (refuses and 'refusals:' or 'recent:') .. user
end

-- How many elements of a list are not later than a time.
local function count_until(key, time)
  local low, high = 0, redis.call('LLEN', key)
  if high > 0 and time_of(redis.call('LINDEX', key, -1)) <= time then
    return high
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if time_of(redis.call('LINDEX', key, middle)) <= time then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Removes an entry of the stream and all that points at it; says how many (1, or 0: it was gone).
local function drop(entry)
  local place, fields = string.match(entry[1], '%d+'), entry[2]
  local event, user, recent = fields[2], fields[4], fields[6]
  redis.call('SREM', prefix .. 'ids', event)
  redis.call('LREM', prefix .. 'places:' .. user, 1, place)
  redis.call('LREM', key_of(user, recent), 1, recent .. ' ' .. place)
  return redis.call('XDEL', prefix .. 'events', entry[1])
end

local function drop_request(id, user)
  if user then
    local members = prefix .. 'lists:' .. user
    redis.call('ZREMRANGEBYLEX', members, '[' .. id, '(' .. id .. '\\255')
  end
  redis.call('ZREM', prefix .. 'requests', id)
  return redis.call('DEL', prefix .. 'request:' .. id)
end

local function last_forgotten()
  local found = redis.call('GET', prefix .. 'last_forgotten')
  if not found and redis.call('EXISTS', prefix .. 'forgotten') == 1 then
    found = 0
    for _, time in ipairs(redis.call('HVALS', prefix .. 'forgotten')) do
      found = math.max(found, tonumber(time))
    end
    redis.call('SET', prefix .. 'last_forgotten', found)
  end
  return tonumber(found or -1)
end

-- The latest moment at which a user was forgotten, by the hashes of the id from ARGV[first]; or -1.
local function forgotten_at(first, count)
  local found = -1
  if count > 0 then
    local hashes = {unpack(ARGV, first, first + count - 1)}
    for _, time in ipairs(redis.call('HMGET', prefix .. 'forgotten', unpack(hashes))) do
      found = math.max(found, tonumber(time or -1))
    end
  end
  return found
end

-- The key of the set of hidden items; it is made again after changes by a version without it.
local function hidden_items()
  local key, version = prefix .. 'hidden', redis.call('GET', prefix .. 'items_version') or '0'
  if redis.call('GET', prefix .. 'hidden_version') ~= version then
    redis.call('DEL', key)
    local states = redis.call('HGETALL', prefix .. 'items')
    for i = 1, #states, 2 do
      if string.sub(states[i + 1], 1, 5) == '[true' then
        redis.call('SADD', key, states[i])
      end
    end
    redis.call('SET', prefix .. 'hidden_version', version)
  end
  return key
end
"""

_TEXTS = {
    # ARGV: prefix, elements kept a list, hashes an event, when the first was received, then event
    # id, user, h, p and the hashes of the user's id of each event. Without hashes nothing is
    # stored, and nil is returned, if a user was forgotten since.
    "add_events": """
local kept, hashes, added = tonumber(ARGV[2]), tonumber(ARGV[3]), {}
if hashes == 0 and last_forgotten() >= tonumber(ARGV[4]) then
  return nil
end
for i = 5, #ARGV, 4 + hashes do
  local event, user, recent, rest = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local is_new = 0
  if forgotten_at(i + 4, hashes) < time_of(string.sub(rest, 2)) then
    is_new = redis.call('SADD', prefix .. 'ids', event)
  end
  added[#added + 1] = is_new
  if is_new == 1 then
    local place = redis.call('INCR', prefix .. 'place')
    redis.call('XADD', prefix .. 'events', place .. '-0',
      'i', event, 'u', user, 'h', recent, 'p', rest)
    redis.call('RPUSH', prefix .. 'places:' .. user, place)
    local key, element, time = key_of(user, recent), recent .. ' ' .. place, time_of(recent)
    local last, length = redis.call('LINDEX', key, -1), nil
    if last and time_of(last) > time then
      local later = redis.call('LINDEX', key, count_until(key, time))
      length = redis.call('LINSERT', key, 'BEFORE', later, element)
    else
      length = redis.call('RPUSH', key, element)
    end
    if length > kept then
      redis.call('LTRIM', key, -kept, -1)
    end
  end
end
return added
""",
    # ARGV: prefix, hashes a list, when the first was made, then id, value, user ('': none), member
    # of the user's lists, time and the hashes of the user's id of each list; nil as of add_events.
    "add_requests": """
local hashes = tonumber(ARGV[2])
if hashes == 0 and last_forgotten() >= tonumber(ARGV[3]) then
  return nil
end
for i = 4, #ARGV, 5 + hashes do
  local id, value, user, member, time = unpack(ARGV, i, i + 4)
  if forgotten_at(i + 5, hashes) < tonumber(time) then
    redis.call('SET', prefix .. 'request:' .. id, value)
    redis.call('ZADD', prefix .. 'requests', 0, id)
    if user ~= '' then
      redis.call('ZADD', prefix .. 'lists:' .. user, 0, member)
    end
  end
end
return 1
""",
    # ARGV: prefix, user, most events, before which time ('': any), then the hashes of the user's
    # id.
    "visitor": """
local key = prefix .. 'recent:' .. ARGV[2]
local count = ARGV[4] == '' and redis.call('LLEN', key) or count_until(key, ARGV[4] - 1)
local events = {}
if count > 0 then
  events = redis.call('LRANGE', key, math.max(0, count - ARGV[3]), count - 1)
end
return {
  events,
  forgotten_at(5, #ARGV - 4),
  redis.call('GET', prefix .. 'items_version'),
  redis.call('LRANGE', prefix .. 'refusals:' .. ARGV[2], 0, -1),
  redis.call('GET', prefix .. 'topics:' .. ARGV[2])
}
""",
    # ARGV: prefix, user, since which time, the ids of lists from then on, most lists.
    "shown": """
local key = prefix .. 'impressions:' .. ARGV[2]
return {
  redis.call('LRANGE', key, count_until(key, ARGV[3] - 1), -1),
  redis.call('ZRANGEBYLEX', prefix .. 'lists:' .. ARGV[2], ARGV[4], '+')
}
""",
    # ARGV: prefix, lowest and highest id as ZRANGEBYLEX has them, most lists.
    "requests_between": """
local found = {}
local ids = redis.call(
  'ZRANGEBYLEX', prefix .. 'requests', ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
for _, id in ipairs(ids) do
  found[#found + 1] = {id, redis.call('GET', prefix .. 'request:' .. id)}
end
return found
""",
    "hidden_items": """
local hidden = redis.call('SMEMBERS', hidden_items())
return {redis.call('GET', prefix .. 'items_version'), hidden}
""",
    # ARGV: prefix, then item and state ('' resets it) of each.
    "change_items": """
local hidden = hidden_items()
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', prefix .. 'items', ARGV[i])
  else
    redis.call('HSET', prefix .. 'items', ARGV[i], ARGV[i + 1])
  end
  local change = string.sub(ARGV[i + 1], 1, 5) == '[true' and 'SADD' or 'SREM'
  redis.call(change, hidden, ARGV[i])
end
local version = redis.call('INCR', prefix .. 'items_version')
redis.call('SET', prefix .. 'hidden_version', version)
return version
""",
    # ARGV: prefix, user, when, the key ('': that of the environment), its name, then the hashes of
    # the user's id, that of the key first. From here on no reader sees a history.
    "forget": """
if ARGV[4] ~= '' then
  redis.call('SET', prefix .. 'user_key', ARGV[4], 'NX')
  if redis.call('GET', prefix .. 'user_key') ~= ARGV[4] then
    return redis.error_reply('ERR another user_key: the store was emptied; restart this process')
  end
end
local time = math.max(tonumber(ARGV[3]), forgotten_at(6, #ARGV - 5))
redis.call('SET', prefix .. 'last_forgotten', math.max(time, last_forgotten()))
redis.call('HSET', prefix .. 'forgotten', ARGV[6], time)
redis.call('SADD', prefix .. 'user_key_names', ARGV[5])
for _, name in ipairs({'recent:', 'impressions:', 'refusals:', 'topics:'}) do
  redis.call('DEL', prefix .. name .. ARGV[2])
end
return redis.call('GET', prefix .. 'place')
""",
    # ARGV: prefix, user, up to which place, most events. Returns how many were looked at, and
    # removed.
    "forget_events": """
local key = prefix .. 'places:' .. ARGV[2]
local looked, removed = 0, 0
for _, place in ipairs(redis.call('LRANGE', key, 0, ARGV[4] - 1)) do
  if tonumber(place) <= tonumber(ARGV[3]) then
    looked = looked + 1
    local entry = redis.call('XRANGE', prefix .. 'events', place, place)[1]
    if entry then
      removed = removed + drop(entry)
    else
      redis.call('LREM', key, 1, place)
    end
  end
end
return {looked, removed}
""",
    # ARGV: prefix, user, most lists. Returns how many were looked at, and removed.
    "forget_requests": """
local key = prefix .. 'lists:' .. ARGV[2]
local members = redis.call('ZRANGE', key, 0, ARGV[3] - 1)
local removed = 0
for _, member in ipairs(members) do
  removed = removed + drop_request(string.sub(member, 1, 32), nil)
  redis.call('ZREM', key, member)
end
return {#members, removed}
""",
    # ARGV: prefix, arrived before which time, after which place, most events. Returns how many
    # were looked at, how many removed, and the last place.
    "remove_events": """
local entries = redis.call(
  'XRANGE', prefix .. 'events', '(' .. ARGV[3] .. '-0', '+', 'COUNT', ARGV[4])
local removed, last = 0, ARGV[3]
for _, entry in ipairs(entries) do
  last = string.match(entry[1], '%d+')
  if tonumber(string.match(entry[2][8], '%d+')) < tonumber(ARGV[2]) then
    removed = removed + drop(entry)
  end
end
return {#entries, removed, last}
""",
    # ARGV: prefix, first id that stays as ZRANGEBYLEX has it, most lists.
    "remove_requests": """
local ids = redis.call(
  'ZRANGEBYLEX', prefix .. 'requests', '-', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, id in ipairs(ids) do
  local value = redis.call('GET', prefix .. 'request:' .. id)
  local user = value and cjson.decode(string.match(value, '^[^\\n]*'))[2]
  drop_request(id, user ~= cjson.null and user or nil)
end
return #ids
""",
}
SCRIPTS = {name: (SHARED + text).encode() for name, text in _TEXTS.items()}
DIGESTS = {name: sha1(text, usedforsecurity=False).hexdigest() for name, text in SCRIPTS.items()}
