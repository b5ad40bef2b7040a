"""What may be asked of a replica: a request is read and checked whole before anything is done for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from coordinator.names import session_name
from coordinator.signature import sign
from workers.gateway.problems import Problem
from workers.gateway.settings import GatewaySettings

#: What a client calls a message that it may send again.
KEY = "Idempotency-Key"
#: Says that an answer is that of an earlier delivery of the message.
REPLAYED = "Idempotency-Replayed"
ON_BUSY = ("wait", "reject", "interrupt")
_FIELDS = ("message", "config", "on_busy")
_KEY = re.compile("[!-~]{1,255}")
EVENTS = "text/event-stream"
#: What is signed of a config, and of what type it is where it is there.
SIGNED: dict[str, type] = {"model": str, "ephemeral_prompt": str, "runtime": dict, "extra": dict, "toolsets": list}


@dataclass(frozen=True, slots=True)
class Message:
    """One message for a session, as it was sent to us."""

    session: str
    text: str = field(repr=False)
    config: dict[str, Any] | None = field(default=None, repr=False)  # may hold credentials
    on_busy: str = "wait"
    streamed: bool = False  #: the client wants events
    key: str | None = None  #: what its sender calls it, if it may be sent again
    body: bytes = field(default=b"", repr=False)  #: all of it, as it came

    @property
    def digest(self) -> str:
        """Of the text: a key that comes again has to come with the same one."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()


def target(request: Request) -> tuple[str, bool]:
    """The session in the path, and whether its turns are meant. Read from the bytes that were sent: a name may hold an
    encoded slash."""
    path: bytes = request.scope["raw_path"]
    match path.split(b"/"):
        case [b"", b"v1", b"sessions", name, *rest] if rest in ([], [b"turns"]):
            try:
                return session_name(unquote_to_bytes(name).decode()), bool(rest)
            except UnicodeDecodeError:
                raise Problem("invalid-request", "a session is percent-encoded UTF-8") from None
    raise Problem("not-found", "there is nothing at this address")


async def message_of(session: str, request: Request, settings: GatewaySettings) -> Message:
    """A message for a turn, or the problem with it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("unsupported-media-type", "the body has to be application/json")
    raw = await _body(request, settings)
    if not raw and "upgrade" in request.headers:
        _wrong("this is an HTTP/1.1 server, and a body that comes with an Upgrade header is not read")
    body = _fields(raw)
    if unknown := sorted(body.keys() - set(_FIELDS)):
        _wrong(f"unknown field {ascii(unknown[0])[:40]}: one of {', '.join(_FIELDS)}")
    text, config, on_busy = body.get("message"), body.get("config"), body.get("on_busy", "wait")
    if not isinstance(text, str):
        _wrong("message has to be a text")
    if config is not None and not isinstance(config, dict):
        _wrong("config has to be an object")
    for name, wanted in SIGNED.items():
        if config and config.get(name) is not None and not isinstance(config[name], wanted):
            _wrong(
                f"config.{name} has to be {'an object' if wanted is dict else 'a list' if wanted is list else 'a text'}"
            )
    if on_busy not in ON_BUSY:
        _wrong(f"on_busy has to be one of {', '.join(ON_BUSY)}")
    try:
        sign(config)
    except (ValueError, TypeError) as error:
        _wrong(str(error))
    streamed = _wants_events(request.headers.get("accept", ""))
    return Message(session, text, config, on_busy, streamed, _key(request), raw)


def _key(request: Request) -> str | None:
    keys = request.headers.getlist(KEY)
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        _wrong(f"{KEY} is one header with 1–255 visible ASCII characters")
    return keys[0]


def _wants_events(accept: str) -> bool:
    return any(kind.partition(";")[0].strip().lower() == EVENTS for kind in accept.split(","))


async def _body(request: Request, settings: GatewaySettings) -> bytes:
    """All of the body, as long as it stays under its limit and comes in time."""
    body = bytearray()
    too_large = Problem("too-large", f"a body may have {settings.body_limit} bytes")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > settings.body_limit:
        raise too_large
    try:
        async with asyncio.timeout(settings.body_for):
            async for piece in request.stream():
                body += piece
                if len(body) > settings.body_limit:
                    raise too_large
    except TimeoutError:
        raise Problem("too-slow", f"a body has to arrive within {settings.body_for:g} s") from None
    except ClientDisconnect:
        _wrong("the client left in the middle of its request")
    return bytes(body)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body.decode(), parse_constant=_no_number)
        json.dumps(fields, ensure_ascii=False).encode()  # a lone half of a surrogate pair is no text
    except UnicodeError:
        _wrong("the body has to be UTF-8, and so do its texts")
    except (ValueError, RecursionError):
        _wrong("the body has to be JSON")
    if not isinstance(fields, dict):
        _wrong("the body has to be a JSON object")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _wrong(detail: str) -> NoReturn:
    raise Problem("invalid-request", detail)
