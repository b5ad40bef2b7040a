"""Where a replica listens, and where the others reach it."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

from coordinator.cli.command import BadUsage
from coordinator.clients import endpoint, sync_client
from coordinator.settings import Settings

#: So long a connection, and its request, may take that was on its way to us when we stopped to listen.
LAST_FOR = 0.3
#: How many connections may wait to be accepted.
BACKLOG = 2048
#: Of Linux; Python has no name for it.
SO_ATTACH_FILTER = 26
#: A filter for it: of what begins a connection (in byte 13 of TCP's header SYN, and not ACK) nothing is taken.
_NO_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 1 << 30))


def port_number(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {ascii(text)[:40]}")
    return int(text)


def listen(host: str, port: int) -> socket.socket:
    """Listen before anything else: who cannot should not join the room, and who is in the room can be reached."""
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        # With its protocol: asyncio sets TCP_NODELAY only where it sees that this is TCP.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        raise BadUsage(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def admit_no_more(listening: socket.socket) -> bool:
    """Let no new connection begin, so that those which are established can be accepted before the socket is closed: the
    kernel resets what waits to be accepted then, with the request that it may have sent. A client tries again for a
    while, and meets whoever listens next. False where there is no such thing (Linux has it)."""
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _NO_SYN))
    program = struct.pack("HP", len(_NO_SYN), ctypes.addressof(steps))
    try:
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True


async def stop_listening(listening: socket.socket, close: Callable[[], object]) -> None:
    """Close what listens, so that whoever had come is heard."""
    if not admit_no_more(listening):
        close()
    await asyncio.sleep(LAST_FOR)
    close()


def reachable(host: str, settings: Settings) -> str:
    """By which name other replicas reach this one: what it listens on, or, if that is every address, the one from which
    it reaches Redis, as they do."""
    if host not in ("0.0.0.0", "::", ""):
        return bracketed(host)
    client = sync_client(settings.redis, timeout=1.0, connections=1)
    there, _, port = endpoint(client).rpartition(":")
    try:
        family, *_, address = socket.getaddrinfo(there.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return bracketed(str(probe.getsockname()[0]))
    except (OSError, ValueError):  # a unix socket, or a name that is not known yet
        return socket.gethostname()
    finally:
        client.close()


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def checked_address(address: str) -> str:
    """Where other replicas reach this one: a plain URL of a host and a port. It is shown to whoever looks."""
    parts = urlsplit(address)
    plain = not (parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment)
    if parts.scheme in ("http", "https") and parts.hostname and plain:
        return address.rstrip("/")
    raise ValueError("an advertised address is http://host:port, with no password, path or query")
