"""Commands that look: `status`, `sessions`, `workers`, `events`."""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import asdict
from typing import Any

from coordinator.cli.command import Family, matching
from coordinator.cli.output import OWN, clock, place, readable, show, span, words
from coordinator.room import Coordinator, Event

COMMANDS = Family()

_COUNT = matching("[1-9][0-9]{0,8}", "a whole number above zero", int)
_ENTRY = matching("-|[0-9]{1,18}(-[0-9]{1,18})?", "an entry of the journal such as 1794977952081-0")
_LIMIT: dict[str, Any] = {"type": _COUNT, "metavar": "N", "help": "at most so many"}
_NEWEST = _LIMIT | {"help": "the newest N (default: 20; with --since: all)"}
_SINCE = {"type": _ENTRY, "default": "-", "metavar": "ID", "help": "what came after this entry, or Unix time in ms"}


@COMMANDS.command("status", "show a room at a glance")
def status(room: Coordinator, options: argparse.Namespace) -> int:
    workers, sessions, counters, limits = room.workers(), room.sessions(), room.counters(), room.limits()
    kinds = ["dead" if worker.heartbeat_left <= 0 else worker.state for worker in workers]
    turns = counters.get("hits", 0) + counters.get("builds", 0)
    rate = counters.get("hits", 0) / turns if turns else None
    state: dict[str, Any] = {
        "room": room.settings.room,
        "redis": place(room.settings.redis),
        "workers": {kind: kinds.count(kind) for kind in ("up", "draining", "dead")},
        "sessions": {state: sum(one.state == state for one in sessions) for state in ("live", "building")}
        | {"mid_turn": sum(bool(one.turn) for one in sessions)},
        "limits": limits and asdict(limits),
        "hit_rate": rate,
        "counters": counters,
    }
    seen = state | {"hit_rate": None if rate is None else f"{rate:.0%}", "limits": readable(limits) if limits else OWN}
    return show(options, state, (), [(name, words(value)) for name, value in seen.items()])


@COMMANDS.command("sessions", "list the sessions with an agent, the next victim first", _limit=_LIMIT)
def sessions(room: Coordinator, options: argparse.Namespace) -> int:
    found, rows = room.sessions(options.limit), []
    for one in found:
        doing = f"turn {span(one.running)}" if one.turn else f"idle {span(one.idle)}"
        rows.append((one.session, one.worker, one.state, doing, one.signature[:12], one.fence, one.evict))
    return show(options, found, ("session", "worker", "state", "doing", "signature", "fence", "to evict"), rows)


@COMMANDS.command("workers", "list the workers of a room")
def workers(room: Coordinator, options: argparse.Namespace) -> int:
    found, rows = room.workers(), []
    for one in found:
        beat = "over" if one.heartbeat_left <= 0 else span(one.heartbeat_left)
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.started))
        rows.append((one.worker, one.state, one.held, one.turns, beat, started, one.host, one.pid, one.address))
    return show(
        options, found, ("worker", "state", "held", "turns", "beat left", "started", "host", "pid", "address"), rows
    )


@COMMANDS.command("events", "show the journal, oldest first", _since=_SINCE, _limit=_NEWEST)
def events(room: Coordinator, options: argparse.Namespace) -> int:
    found, since = deque[Event](maxlen=options.limit or (20 if options.since == "-" else None)), options.since
    while page := room.events(since):  # the journal is capped, and a page is much longer than what comes meanwhile
        found += page
        since = page[-1].id
    rows = []
    for one in found:
        about = {name: value for name, value in one.fields.items() if name != "session"}
        rows.append((one.id, clock(one.at), one.event, one.fields.get("session", ""), words(about)))
    return show(options, list(found), ("id", "time", "event", "session", "about"), rows)
