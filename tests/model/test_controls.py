"""Negative controls: each breaks one rule in the scripts' text, and the machine must find it.

A control that passes unnoticed means that the machine does not look there: a defect of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.keys import fake

from coordinator.private_redis import find_server
from model.machine import SETTINGS, RoomMachine
from model.stage import Stage, library

#: Scripts are under test here, not the packages: coverage would only slow it down.
pytestmark = pytest.mark.no_cover

#: It stops at the first example that goes red; most do within ten, a few rules are seldom touched.
EXAMPLES = 4000


@dataclass(frozen=True)
class Control:
    """A rule broken on purpose: in `file`, each `text` gives way to another."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]

    def __call__(self, path: str, body: str) -> str:
        if path == self.file:
            for text, instead in self.changes:
                assert text in body, f"{self.name}: lua/{path}.lua has changed; the control must follow"
                body = body.replace(text, instead)
        return body


CONTROLS = (
    Control(  # B22
        "a skipped candidate is replaced by a newer victim",
        "lib/caps",
        (
            ("math.min(at + BATCH, excess - dropped) - 1", "at + 63"),
            ("while at < excess - dropped and", "while dropped < excess and at < redis.call('ZCARD', key) and"),
            ("elseif dropped < most then", "elseif dropped < most and dropped < excess then"),
            ("if at < excess - dropped then return", "if false then return"),
        ),
    ),
    Control(  # G2
        "the cap evicts a session mid-turn",
        "lib/caps",
        (("if held and redis.call(", "if false and redis.call("),),
    ),
    Control(  # rule 11
        "an eviction does not wait for the turn",
        "lib/evict",
        (("if lease_left(room, session, record) == 0 then", "if true then"),),
    ),
    Control(  # rules 4, 6
        "a turn that is not the record's may end or commit",
        "lib/turn",
        (("if record.turn ~= turn then return nil end", "if not record.turn then return nil end"),),
    ),
    Control(  # rule 4
        "a late end is accepted if nobody took over",
        "lib/turn",
        (("if lease_left(room, session, record) > 0 then return record end", "if true then return record end"),),
    ),
    Control(  # rule 10
        "a drop forgets held",
        "lib/drop",
        (("    redis.call('ZREM', prefix .. 'held:' .. record.worker, session)\n", ""),),
    ),
    Control(
        "a copy enters without held",
        "lib/enter",
        (("  redis.call('ZADD', room.prefix .. 'held:' .. worker, tick, session)\n", ""),),
    ),
    Control(
        "the count of a signature drifts",
        "lib/drop",
        (
            (
                "if tonumber(redis.call('ZINCRBY', prefix .. 'signatures', -1, record.signature)) <= 0 then",
                "if false then",
            ),
        ),
    ),
    Control(  # rule 4
        "a copy whose lease ran out is used again",
        "begin",
        (
            ("theirs, left = lease_on(room, name)\n", "theirs, left = free_or_leased(room, name)\n"),
            ("local doomed = record.turn and left_to_run == 0", "local doomed = false"),
            (
                "local queued = false\n",
                """local function free_or_leased(of, name)
  local owner = read_record(of, name)
  if owner.turn and lease_left(of, name, owner) == 0 then return nil end
  return lease_on(of, name)
end
local queued = false
""",
            ),
        ),
    ),
    Control(  # rule 14
        "an evicted copy is adopted again outside grace",
        "claim",
        (("  elseif grace and ARGV[i + 3] ~= 'unsure' then\n", "  elseif true then\n"),),
    ),
    Control(  # rule 5
        "a slow build enters as old as its begin",
        "commit",
        (("record.signature, next_tick(room, 0))", "record.signature, record.fence)"),),
    ),
    Control(  # rule 11
        "hard does not beat soft",
        "lib/evict",
        (("if not record.evict or mode == 'hard' then", "if not record.evict then"),),
    ),
    Control(  # rule 7
        "who does not wait jumps the queue",
        "begin",
        (("if first and first ~= turn then", "if queue > 0 and first and first ~= turn then"),),
    ),
    Control(  # rule 7
        "a stale waiter blocks the line",
        "lib/queue",
        (("and not workers[stale + 1] do", "and false do"),),
    ),
    Control(  # rule 1
        "a fence ignores the floor",
        "lib/tick",
        ((", (floor or 0) + 1", ""),),
    ),
    Control(  # rule 1
        "a fence ignores the last tick",
        "lib/tick",
        (("math.max(last + 1, ", "math.max("),),
    ),
    Control(  # rule 2
        "an expiry far away counts, though the clock was set back",
        "lib/left",
        (("left > 0 and left <= (tonumber(length or 0) or 0)", "left > 0"),),
    ),
    Control(  # rule 6
        "an abandoned turn can begin",
        "abandon",
        (("set_for(room, 'ended:' .. turn, answer, ARGV[7])\n", ""),),
    ),
    Control(  # rule 6
        "an end is not remembered",
        "end",
        (("set_for(room, 'ended:' .. turn, wanted, ARGV[9])\n", ""),),
    ),
    Control(  # rule 11a
        "a session begins anew before its end is carried out",
        "begin",
        (("if ends then\n", "if false then\n"),),
    ),
    Control(  # rule 11a
        "an end that is to be done is not called to its worker's mind",
        "begin",
        (("if ends ~= '' and ends ~= worker then", "if false then"),),
    ),
    Control(  # rule 11a
        "a worker's own ends wait until this second is its own",
        "maintain",
        (("if steps == 'all' and worker ~= '' then", "if steps == 'all' and worker ~= '' and mine then"),),
    ),
    Control(  # rule 11a
        "an instance whose place was taken reports an end",
        "closed",
        (("if there and there ~= ARGV[2] then", "if false then"),),
    ),
    Control(  # rule 11a
        "an end that was left to a dead worker stays with it",
        "lib/ending_of",
        (("and not is_alive(room, owner) then", "and false then"),),
    ),
    Control(  # rule 11a
        "nobody is told that a session may begin anew",
        "closed",
        (("    wake(room, ARGV[i])\n", ""),),
    ),
    Control(  # rule 8
        "a second worker with the same id is let in",
        "register",
        (("if left > 0 then return { 'taken'", "if false then return { 'taken'"),),
    ),
    Control(  # rule 8
        "a worker whose place was taken goes on beating",
        "beat",
        (("if about[2] ~= ARGV[4] then", "if false then"),),
    ),
    Control(  # rule 15
        "a stale claim beats a later use",
        "claim",
        (("if used and tonumber(used) >= tonumber(fence) then", "if false then"),),
    ),
    Control(  # rule 15
        "who claims first keeps it",
        "claim",
        (("if used and tonumber(used) >= tonumber(fence) then", "if used then"),),
    ),
    Control(  # rule 15
        "what went during grace is claimed again",
        "claim",
        (("or 0) >= tonumber(fence) then return 'soft' end", "or 0) < 0 then return 'soft' end"),),
    ),
    Control(  # rule 12
        "a turn without a snapshot leaves the last one",
        "lib/snapshot",
        (("    redis.call('DEL', room.prefix .. key)\n", ""),),
    ),
    Control(  # rule 15
        "no grace after a loss of state",
        "begin",
        (("if grace > 0 then", "if false then"),),
    ),
    Control(  # rule 9
        "a lease key is not freed",
        "lib/free",
        (("    redis.call('ZREM', room.prefix .. 'leases', record.key)\n", ""),),
    ),
    Control(  # rule 11
        "a hard eviction leaves the snapshot",
        "lib/order_ending",
        (("  redis.call('DEL', room.prefix .. 'snapshot:' .. session)\n", ""),),
    ),
    Control(  # H18
        "a message that was answered runs again",
        "lib/settled",
        (("if known[2] then return", "if false then return"),),
    ),
    Control(  # H18
        "a delivery whose turn died runs again",
        "lib/settled",
        (("if theirs == delivery then return 'died' end", ""),),
    ),
    Control(  # H18
        "a delivery whose turn runs is taken for dead",
        "lib/settled",
        (("if theirs == delivery then -- it runs\n", "if theirs == delivery then do return 'died' end\n"),),
    ),
    Control(  # H18
        "it is forgotten which turn a delivery has, though somebody waits for it",
        "lib/settled",
        (("    remember_message(room, session, running, 2 * queue)\n", ""),),
    ),
    Control(  # H18
        "another delivery of a message whose turn died does not run",
        "lib/settled",
        (("if theirs == delivery then return 'died'", "if theirs then return 'died'"),),
    ),
    Control(  # H18
        "a delivery that comes very late runs, whatever was forgotten meanwhile",
        "lib/settled",
        (("if late and", "if false and"),),
    ),
    Control(  # H18
        "whoever has waited for long in line comes too late",
        "lib/settled",
        ((" and redis.call('EXISTS', room.prefix .. 'waiter:' .. turn) == 0 then", " then"),),
    ),
    Control(  # H18
        "it is forgotten which turn a delivery had, while it may get another",
        "lib/remember_message",
        (("math.max(tonumber(ms), DELIVERY_MS + 1000)", "ms"),),
    ),
    Control(  # H18
        "whoever waits for an answer is not woken",
        "lib/keep_answer",
        (("if worker then send(", "if false then send("),),
    ),
    Control(  # H18
        "a message that was never run counts as run",
        "lib/forget_message",
        (("'turn') == turn then", "'turn') == turn and false then"),),
    ),
    Control(
        "a turn for the same message is not known as such",
        "begin",
        (("and 'repeat' or 'turn'", "and 'turn' or 'turn'"),),
    ),
    Control(
        "a full line takes one more",
        "lib/busy",
        (("return redis.call('ZCARD', line) >= most", "return false"),),
    ),
    Control(
        "who stopped asking keeps a line full",
        "lib/busy",
        ((".. waiter) == 0 then redis", ".. waiter) == -1 then redis"),),
    ),
    Control(
        "an interrupt meets another turn than was meant",
        "interrupt",
        ((" or (ARGV[2] ~= '' and ARGV[2] ~= record.fence) then", " then"),),
    ),
    Control(
        "a turn is counted for ever",
        "lib/free",
        (("  count_turn(room, record.worker, -1, record.state)\n", ""),),
    ),
    Control(
        "a turn that is claimed again is not counted",
        "claim",
        (("    count_turn(room, worker, 1, state)\n", ""),),
    ),
    Control(
        "an agent that was built is counted as one that is being built",
        "commit",
        (("tally(room, 'building', record.worker, -1)\n", ""),),
    ),
    Control(
        "a build that failed is counted for ever",
        "lib/free",
        (("-1, record.state)", "-1, 'live')"),),
    ),
    Control(
        "an agent that is being built takes no room",
        "lib/place",
        ((" - counted('building')", ""),),
    ),
    Control(
        "a cold session goes to a worker that is draining, or dead",
        "lib/serves",
        (("if about[1] ~= 'up' or not is_alive(room, worker) then", "if not about[1] then"),),
    ),
    Control(
        "a cold session goes to a worker that is to be avoided",
        "lib/place",
        (("    if string.find(but, ' ' .. worker .. ' ', 1, true) then return end\n", ""),),
    ),
    Control(
        "a cold session goes where there is least room",
        "lib/place",
        (("if not best or free > most or", "if not best or free < most or"),),
    ),
    Control(
        "a cold session goes to a worker with many turns",
        "lib/place",
        (("and turns < fewest)", "and turns > fewest)"),),
    ),
    Control(
        "a cold session goes elsewhere though there is as much room here",
        "lib/place",
        (("  look_at(asking, true)", "  look_at(asking, false)"),),
    ),
    Control(
        "whoever has waited in line is sent elsewhere",
        "begin",
        (("if cold and (leaves or redis.call('EXISTS', prefix .. 'waiter:' .. turn) == 0) then", "if cold then"),),
    ),
    Control(
        "whoever has waited in line at a worker that drains is refused, and not sent elsewhere",
        "begin",
        (("if cold and (leaves or ", "if cold and ("),),
    ),
    Control(  # B26
        "a begin leaves the session to the idle sweep",
        "lib/grant",
        (("  redis.call('ZREM', prefix .. 'activity', session)\n", ""),),
    ),
)


@pytest.fixture(scope="module")
def where(request: pytest.FixtureRequest) -> Iterator[tuple[Any, redis.Redis]]:
    """The real server if there is one: it is faster, and one kind of server is enough to see a rule broken."""
    if not find_server():
        client = fake()
        yield client, client
        return
    url = request.getfixturevalue("server").url
    with redis.Redis.from_url(url) as client:
        yield url, client


@pytest.mark.timeout(600)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name.replace(" ", "-"))
def test_broken_rule_is_found(control: Control, where: tuple[Any, redis.Redis], room: str) -> None:
    broken = library(control)
    for script in broken.values():  # one that is not Lua any more would show nothing
        where[1].script_load(script.source)
    stage = Stage(*where, room, broken)
    examples = 0

    class Machine(RoomMachine):
        def __init__(self) -> None:
            nonlocal examples
            examples += 1
            super().__init__()

    Machine.stage = stage
    quick = settings(
        SETTINGS, max_examples=EXAMPLES, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
    )
    try:
        with pytest.raises(AssertionError, match=r"answered|after "):
            run_state_machine_as_test(Machine, settings=quick)
    finally:
        stage.close()
    print(f"{control.name}: found in example {examples}")
