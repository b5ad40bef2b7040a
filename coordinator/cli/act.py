"""Commands that act: `evict`, `sweep`, `drain`, `limits`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from coordinator.cli.command import BadUsage, Family
from coordinator.cli.output import OWN, fail, readable, show, span
from coordinator.limits import Limits
from coordinator.room import Coordinator

COMMANDS = Family()

_HARD = {"action": "store_true", "help": "the session is over: close its agent, drop its snapshot"}
_CLEAR = {"action": "store_true", "help": "give every worker its own limits back"}
_EXAMPLE = "room=512 worker=128 idle_ttl=3600 memory=4GiB; none: no limit; what is not named stays"
_LIMITS = {"nargs": "*", "metavar": "NAME=VALUE", "help": _EXAMPLE}


@COMMANDS.command("evict", "evict a session's agent wherever it is", session={"metavar": "SESSION"}, _hard=_HARD)
def evict(room: Coordinator, options: argparse.Namespace) -> int:
    mode = "hard" if options.hard else "soft"
    found, nobody = room.evict(options.session, mode), f"nobody holds an agent for {options.session}"
    if not found and not options.hard:
        return fail(nobody)
    done = f"evicted {options.session} ({mode}); if a turn runs, at its end"
    line = done if found else f"{nobody}; a worker ends the session"
    return show(options, {"session": options.session, "mode": mode, "found": found}, (), [(line,)])


@COMMANDS.command("sweep", "evict what has been idle for longer than the room's idle_ttl")
def sweep(room: Coordinator, options: argparse.Namespace) -> int:
    limits, idle = room.limits(), room.sweep()
    ttl = limits.idle_ttl if limits else None
    none = "the room sets no idle_ttl (see `greenroom limits`): each worker sweeps by its own"
    line = f"evicted {idle} that were idle for longer than {span(ttl)}" if ttl else none
    return show(options, {"idle": idle, "idle_ttl": ttl}, (), [(line,)])


@COMMANDS.command("drain", "tell a worker to take no new sessions and let its agents go", worker={"metavar": "WORKER"})
def drain(room: Coordinator, options: argparse.Namespace) -> int:
    if not room.drain(options.worker):
        return fail(f"the room has no worker {options.worker}")
    return show(options, {"worker": options.worker, "state": "draining"}, (), [(f"{options.worker} drains",)])


@COMMANDS.command(
    "limits", "show or set the room's limits, which go before the workers' own", limit=_LIMITS, _clear=_CLEAR
)
def limits(room: Coordinator, options: argparse.Namespace) -> int:
    if options.clear and options.limit:
        raise BadUsage("either --clear or limits to set, not both")
    changed = options.limit or options.clear
    if changed:
        named = [word.split("=")[0] for word in options.limit]
        room.set_limits(_limits_of(options.limit) if options.limit else None, named or None)
    if (found := room.limits()) is None:
        return show(options, None, (), [(f"the room sets no limits: {OWN}",)])
    rows = list(readable(found).items())
    if changed:
        rows.append(("", "from the next turn or beat (a third of a lease) on"))
    return show(options, found, (), rows)


def _limits_of(words: Iterable[str]) -> Limits:
    kinds: dict[str, Callable[[str], Any]] = {"room": int, "worker": int, "idle_ttl": float, "memory": str}
    values: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in kinds or not value:
            raise BadUsage(f"a limit is NAME=VALUE with one of {', '.join(kinds)}, not {ascii(word)[:40]}")
        try:
            values[name] = None if value == "none" else kinds[name](value)
            Limits(**{name: values[name]})
        except ValueError:
            wanted = {"idle_ttl": "seconds", "memory": "a size such as 4GiB"}.get(name, "a whole number")
            raise BadUsage(f"limit {name} must be {wanted}, or none; it cannot be {ascii(value)[:40]}") from None
    return Limits(**values)
