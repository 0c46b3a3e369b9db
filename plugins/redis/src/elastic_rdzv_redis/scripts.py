"""The scripts of the server, one atomic step each, in Lua. All take the same four keys (``backend.keys_of``).

* ``KEYS[1]``, the ledger: a hash of ``N`` → entry n; and ``head`` → the newest index.
* ``KEYS[2]``, the roster: a hash of ``n:ID`` → ``SERIAL REVISION``, ``v:ID`` → the value, ``b:ID`` → the heartbeat;
  and ``arrivals`` and ``version``, two counters.
* ``KEYS[3]`` and ``KEYS[4]``, the bells of the ledger and of the roster: streams of one element each, ``now`` → the
  newest index or the roster's version, and ``what`` → the entry, which a woken waiter need not ask for. A waiter
  blocks on the element after the last one that it knows of, so that no change can come between its look and its sleep.

Every change of a key sets the expiry of all four anew, and so does a heartbeat.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from elastic_core.rendezvous import MAX_RECORD_BYTES, MAX_VALUE_BYTES

EXPIRY = 3 * 24 * 3600  # seconds for which a job's keys outlive the last heartbeat
OVERSIZED = MAX_VALUE_BYTES + 1  # bytes of a row's value that are read: enough to see that it has too many

NOT_PERMITTED = ("NOPERM", "can't run this command", "can't access", "ACL failure")
"""The errors of a script without permission: by Redis 6, twice by Redis 7.0, and by later ones and Valkey."""

_PRELUDE = f"""
local ledger, roster, ledger_bell, roster_bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local function keep()
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, {EXPIRY}) end
end
local function number(key, field) return tonumber(redis.call('HGET', key, field) or 0) end
local function head() -- written together with its entry: without that, another program has written it
  local at = number(ledger, 'head')
  if at == 0 or redis.call('HSTRLEN', ledger, redis.call('HGET', ledger, 'head')) > 0 then return at end
  return -1
end
local function ring(bell, now, what) redis.call('XADD', bell, 'MAXLEN', 1, '*', 'now', now, 'what', what) end
local function rung(bell)
  local last = redis.call('XREVRANGE', bell, '+', '-', 'COUNT', 1)[1]
  return last and last[1] or '0-0'
end
local function changed()
  ring(roster_bell, redis.call('HINCRBY', roster, 'version', 1), '')
  keep()
end
local function row(id)
  local found = redis.call('HGET', roster, 'n:' .. id)
  if not found then return nil end
  local serial, revision = string.match(found, '^(%d+) (%d+)$')
  if not serial or #found > 24 then return nil end -- of more digits Lua would keep the first ones only
  return tonumber(serial), tonumber(revision)
end
"""


@dataclass(frozen=True)
class Script:
    """One script; the server knows it by the hash of its text once it has seen it."""

    body: str = field(repr=False)

    @cached_property
    def text(self) -> str:
        """The source that the server runs."""
        return _PRELUDE + self.body

    @cached_property
    def sha(self) -> str:
        """The name by which the server knows the script."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ENTER = Script("""
local id, value = ARGV[1], ARGV[2]
local serial = row(id)
if serial then return serial end
serial = redis.call('HINCRBY', roster, 'arrivals', 1)
redis.call('HSET', roster, 'n:' .. id, serial .. ' 0', 'v:' .. id, value, 'b:' .. id, 0)
changed()
return serial
""")

AMEND = Script("""
local id, revision, value = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local serial, old = row(id)
if serial and old < revision then
  redis.call('HSET', roster, 'n:' .. id, serial .. ' ' .. ARGV[2], 'v:' .. id, value)
  changed()
end
""")

REMOVE = Script("""
local id = ARGV[1]
if redis.call('HDEL', roster, 'n:' .. id, 'v:' .. id, 'b:' .. id) > 0 then changed() end
""")

HEARTBEAT = Script("""
local id, count, watch = ARGV[1], ARGV[2], ARGV[3]
local serial, revision = row(id)
if serial then redis.call('HSET', roster, 'b:' .. id, count) end
keep()
local watched = watch and row(watch) and number(roster, 'b:' .. watch)
return {head(), serial and revision or -1, watched or -1}
""")
"""The newest index (-1 if that is none), the row's revision and the watched heartbeat; -1 for what is not there."""

ROSTER = Script(f"""
local found = {{}}
if #ARGV == 0 then
  found = redis.call('HGETALL', roster)
else
  for _, id in ipairs(ARGV) do
    local values = redis.call('HMGET', roster, 'n:' .. id, 'v:' .. id, 'b:' .. id)
    if values[1] then
      for place, kind in ipairs({{'n:', 'v:', 'b:'}}) do
        table.insert(found, kind .. id)
        table.insert(found, values[place] or '')
      end
    end
  end
end
for place, value in ipairs(found) do
  if #value > {OVERSIZED} then found[place] = string.sub(value, 1, {OVERSIZED}) end
end
return found
""")
"""Fields and values in turn, of all nodes or of those named."""

APPEND = Script("""
local before, before_header, index, entry = ARGV[1], ARGV[2] .. '\\n', ARGV[3], ARGV[4]
local function is(at, header)
  local there = redis.call('HGET', ledger, at)
  return there, there and string.sub(there, 1, #header) == header
end
local there, same = is(index, string.match(entry, '^[^\\n]*\\n'))
if there then return same and 1 or 0 end
if before ~= '0' then
  local _, built_on = is(before, before_header)
  if not built_on then return 0 end
end
redis.call('HSET', ledger, index, entry, 'head', index)
ring(ledger_bell, index, entry)
keep()
return 1
""")
"""1 if the entry stands there now, else 0."""

READ = Script(f"""
local size = redis.call('HSTRLEN', ledger, ARGV[1])
if size > {MAX_RECORD_BYTES} then return size end
return redis.call('HGET', ledger, ARGV[1])
""")
"""The entry; its size in bytes if it has too many; nothing if there is none."""

SHRINK = Script("""
local entry = redis.call('HGET', ledger, ARGV[1])
local header = entry and string.match(entry, '^[^\\n]*\\n')
if header and header ~= entry then redis.call('HSET', ledger, ARGV[1], header) end
""")
"""An entry keeps only its header, which has its id."""

ERASE = Script("""
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, 0) end
""")
"""Deletes the keys, by a command that every access list for this backend has."""

LOOK = Script("""
return {head(), number(roster, 'version'), rung(ledger_bell), rung(roster_bell)}
""")
"""The newest index (-1 if that is none), the roster's version, and the last strokes of both bells."""

REHEARSE = Script(
    f"""
local refusals = {{{", ".join(f'"{words}"' for words in NOT_PERMITTED)}}}
"""
    + """
local commands = {
  {'HGET', ledger, 'head'}, {'HMGET', ledger, 'head'}, {'HSTRLEN', ledger, 'head'}, {'HGETALL', ledger_bell},
  {'XREVRANGE', ledger_bell, '+', '-', 'COUNT', 1}, {'XREAD', 'COUNT', 1, 'STREAMS', ledger_bell, '$'},
  {'HDEL', roster, ''}, {'HSET', roster, 'field', 'value', 'field'}, {'HINCRBY', roster, 'version', 'no number'},
  {'XADD', ledger_bell, 'no id', 'now', ''}, {'EXPIRE', roster, 'no number'},
}
for _, command in ipairs(commands) do
  local said = redis.pcall(unpack(command))
  local why = type(said) == 'table' and said.err or ''
  for _, refusal in ipairs(refusals) do
    if string.find(why, refusal, 1, true) then
      return redis.error_reply('NOPERM no permission to run ' .. command[1] .. ' on ' .. ledger)
    end
  end
end
"""
)
"""Every command of the others, so that none changes anything: those that write delete what is not there, or make no
sense. What an access list refuses is so said before anything is written, and not when it is first needed."""
