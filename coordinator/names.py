"""Which names are allowed: every name that becomes part of a key or a message is checked here, before it is used."""

from __future__ import annotations

import os
import re
import secrets
import socket
import unicodedata
from collections.abc import Iterable

from coordinator.errors import InvalidName

MODES = ("soft", "hard")
REASONS = (
    "lru", "idle", "memory", "reset", "signature", "moved", "fallback", "drain", "dead", "lost", "operator",
)  # fmt: skip

_ROOM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WORKER = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SIGNATURE = re.compile(r"[!-~]{1,128}")
_SESSION_BYTES = 512


def room_name(name: str) -> str:
    return _matching(name, _ROOM, "a room is 1–64 of the characters A–Z a–z 0–9 _ . -")


def worker_name(name: str) -> str:
    return _matching(name, _WORKER, "a worker id is 1–128 of the characters A–Z a–z 0–9 _ . : -")


def signature_name(name: str) -> str:
    return _matching(name, _SIGNATURE, "a signature is 1–128 visible ASCII characters")


def session_name(name: str, what: str = "session") -> str:
    """A session, or a lease key, which lives in the same name space."""
    rule = f"a {what} is 1–{_SESSION_BYTES} bytes of UTF-8 without control characters"
    if not isinstance(name, str):
        raise InvalidName(f"{rule}, not a {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{rule}; this one is not valid Unicode") from None
    if not 0 < size <= _SESSION_BYTES:
        raise InvalidName(f"{rule}; this one has {size} bytes")
    if not name.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in name):
        raise InvalidName(f"{rule}; this one has a control character")
    return name


def mode_name(mode: str) -> str:
    return _one_of(mode, MODES, "mode")


def reason_name(reason: str) -> str:
    return _one_of(reason, REASONS, "reason")


def new_worker_name() -> str:
    """`<host>-<pid>-<6 hex>`: unique, and readable for whoever looks for the process."""
    host = re.sub(r"[^A-Za-z0-9_.:-]", "-", socket.gethostname())[:96]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


def _matching(name: str, pattern: re.Pattern[str], rule: str) -> str:
    if not isinstance(name, str):
        raise InvalidName(f"{rule}, not a {type(name).__name__}")
    if not pattern.fullmatch(name):
        raise InvalidName(f"{rule}; this one is {'empty' if not name else ascii(name[:40])}")
    return name


def _one_of(value: str, allowed: Iterable[str], what: str) -> str:
    if value not in allowed:
        raise ValueError(f"unknown {what} {ascii(value)[:60]}: one of {', '.join(allowed)}")
    return value
