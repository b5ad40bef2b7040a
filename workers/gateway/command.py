"""`greenroom serve --agent module:build --port 8000`: the command line of a gateway replica."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from coordinator.cli.command import ROOM, BadUsage, Subparsers, add_command
from coordinator.clients import sync_client
from coordinator.settings import Settings, limits_from
from workers.gateway.addresses import bracketed, checked_address, listen, port_number, reachable
from workers.gateway.logs import log_to_stderr

ECHO = "workers.gateway.echo:build"


def command(subparsers: Subparsers) -> None:
    """Register `greenroom serve`."""
    parser = add_command(subparsers, "serve", main, "serve agents over HTTP, as one replica of a gateway")
    parser.add_argument("--room", metavar="NAME", help=ROOM)
    parser.add_argument(
        "--agent",
        metavar="MODULE:BUILD",
        help=f"what makes an agent: called with a request, it returns one with `run(message)`; {ECHO} says back "
        "what it hears (default: $GREENROOM_AGENT)",
    )
    parser.add_argument(
        "--host", metavar="HOST", help="address to listen on (default: $GREENROOM_HOST, else 127.0.0.1)"
    )
    parser.add_argument(
        "--port", metavar="N", type=port_number, help="0: any free one (default: $GREENROOM_PORT, else 8000)"
    )
    parser.add_argument(
        "--advertise",
        metavar="URL",
        help="where the other replicas reach this one (default: $GREENROOM_ADDRESS, else made of the host that is "
        "listened on, or the address from which Redis is reached, and the port)",
    )
    parser.add_argument("--worker", metavar="ID", help="the worker's id (default: host, process and a few letters)")
    parser.add_argument(
        "--drain-for",
        metavar="SECONDS",
        type=float,
        help="how long running turns may take when it is told to go (default: $GREENROOM_DRAIN_FOR, else 300)",
    )
    parser.add_argument(
        "--on-disconnect",
        choices=("finish", "interrupt"),
        help="what becomes of the turn of a client that goes away (default: $GREENROOM_ON_DISCONNECT, else finish)",
    )
    parser.add_argument(
        "--no-affinity",
        action="store_true",
        help="give every message its turn here, also where another replica has the warm agent",
    )


def main(options: argparse.Namespace) -> int:
    """Serve until told to go. 0: everything was left in order."""
    agent = options.agent or os.environ.get("GREENROOM_AGENT")
    if not agent:
        raise BadUsage(f"--agent is missing; to try it without one of your own: --agent {ECHO}")
    build = _named(agent)
    try:
        from workers.gateway.gateway import Gateway
        from workers.gateway.server import STOP_FOR, serve
        from workers.gateway.settings import GatewaySettings
    except ModuleNotFoundError as error:
        raise BadUsage(f"{error.name} is not installed: `greenroom serve` needs the extra `gateway`") from None
    log_to_stderr()
    host = options.host or os.environ.get("GREENROOM_HOST") or "127.0.0.1"
    try:
        port = options.port if options.port is not None else port_number(os.environ.get("GREENROOM_PORT") or "8000")
        settings = GatewaySettings.load(
            drain_for=options.drain_for,
            on_disconnect=options.on_disconnect,
            affinity=False if options.no_affinity else None,
        )
        worker = Settings.load(redis=options.redis, room=options.room)
        advertised = options.advertise or worker.address
        if advertised:
            advertised = checked_address(advertised)
        limits = limits_from()
        sync_client(worker.redis, timeout=1.0, connections=1).close()
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise BadUsage(str(error)) from None
    listening = listen(host, port)
    bound = listening.getsockname()[1]
    address = advertised or f"http://{reachable(host, worker)}:{bound}"
    gateway = Gateway(
        build,
        settings,
        redis=options.redis,
        room=options.room,
        worker=options.worker,
        limits=limits,
        address=address,
        drain_for=STOP_FOR,
    )
    about = {"worker": gateway.worker.id, "url": f"http://{bracketed(host)}:{bound}", "address": address}
    about |= {"room": worker.room, "agent": agent}

    def announce() -> None:
        line = "{worker} serves {agent} at {url}, for the other replicas {address}, in the room {room}"
        print(json.dumps(about) if options.json else line.format(**about), flush=True)

    with listening:
        asyncio.run(serve(gateway, listening, announce))
    return 0


def _named(name: str) -> Callable[..., Any]:
    """The builder that `module:attribute` names, also from the folder we are in."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise BadUsage(f"--agent is module:build, not {ascii(name)[:80]}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise BadUsage(f"--agent {name}: there is no module {error.name!r}") from None
    except Exception as error:  # whoever wrote it wants to see all of it
        traceback.print_exception(error)
        raise BadUsage(f"--agent {name}: {module} cannot be imported, see above ({type(error).__name__})") from None
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise BadUsage(f"--agent {name}: {module} has no {attribute!r}") from None
    if not callable(found):
        raise BadUsage(f"--agent {name}: it cannot be called; it has to make an agent of a request")
    return found  # type: ignore[no-any-return]
