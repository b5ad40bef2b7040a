"""What a command is: a parser with the options that all have, and the room that they name."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from coordinator.room import Coordinator
from coordinator.settings import Settings

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]
Action: TypeAlias = Callable[[Coordinator, argparse.Namespace], int]

ROOM = "which room (default: $GREENROOM_ROOM, else default)"


class BadUsage(Exception):
    """The command line or the environment asks for something that cannot be; the message is one line."""


def add_command(subparsers: Subparsers, name: str, run: Run, about: str) -> argparse.ArgumentParser:
    """A command with the options that all have: where Redis is, and `--json`."""
    command = subparsers.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".")
    command.set_defaults(run=run)
    command.add_argument(
        "--redis", metavar="URL", help="where Redis is (default: $GREENROOM_REDIS_URL, else redis://localhost:6379)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    return command


class Family(list[Callable[[Subparsers], None]]):
    """Commands that belong together, in the order in which they are listed."""

    def command(self, name: str, about: str, **arguments: dict[str, Any]) -> Callable[[Action], Action]:
        """Make a command of a function that is given a room. An argument `_name` is the option `--name`."""

        def register(act: Action) -> Action:
            def run(options: argparse.Namespace) -> int:
                with room_of(options) as room:
                    return act(room, options)

            def command(subparsers: Subparsers) -> None:
                parser = add_command(subparsers, name, run, about)
                parser.add_argument("--room", metavar="NAME", help=ROOM)
                for argument, how in arguments.items():
                    parser.add_argument(argument.replace("_", "--"), **how)

            self.append(command)
            return act

        return register


def room_of(options: argparse.Namespace) -> Coordinator:
    """The room that the options and the environment name. An operator is told early that Redis is away."""
    try:
        Settings.load(redis=options.redis, room=options.room)
    except ValueError as error:
        raise BadUsage(str(error)) from None
    try:
        patience = None if os.environ.get("GREENROOM_RETRY_FOR") else 1.0
        return Coordinator(options.redis, options.room, retry_for=patience)
    except ValueError:  # whatever it says may hold a part of the password
        raise BadUsage("the Redis URL cannot be read: redis://[[user]:password@]host[:port][/db]") from None


def matching(pattern: str, rule: str, make: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """A type of argument: text of this pattern, else an error that says the rule."""

    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{rule}, not {ascii(text)[:40]}")
        return make(text)

    return read
