"""The whole command line, and one way out of it for whatever goes wrong.

The commands of this package need only a `Coordinator`; those that need more are found in the entry-point group
`greenroom.commands`: each is a function that is given `subparsers` and adds its parser (see `add_command`).
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from coordinator import __version__
from coordinator.cli import act, look
from coordinator.cli.command import BadUsage
from coordinator.cli.output import fail
from coordinator.errors import GreenroomError, InvalidName

#: Where further commands register themselves.
GROUP = "greenroom.commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Whatever goes wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no ● is no reason to fail
    options = parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (BadUsage, InvalidName) as error:
        return fail(str(error), 2)
    except GreenroomError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `greenroom events | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # its text may hold anything
        return fail(f"unexpected {type(error).__name__}: does something else write to the room's keys?")


def parser() -> argparse.ArgumentParser:
    """The whole command line: the commands here, and those that other packages bring."""
    top = argparse.ArgumentParser(
        prog="greenroom",
        description="Look after a room of warm agents.",
        epilog="Options come after the command: `greenroom status --room support --json`.",
    )
    top.add_argument("--version", action="version", version=f"greenroom {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (*look.COMMANDS, *act.COMMANDS):
        command(subparsers)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()(subparsers)
        except Exception as error:  # somebody else's command must not take ours down
            fail(f"the command {entry.name!r} cannot be loaded ({type(error).__name__})")
    return top
