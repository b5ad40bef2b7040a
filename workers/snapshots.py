"""What makes a rebuilt agent warm: read when it is built, written at the end of its turns (rule 12).

A copy remembers what Redis has of it, so that a turn that changed nothing sends nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from typing import TYPE_CHECKING, Any

from coordinator.codec import pack, unpack
from workers.copies import Copy
from workers.running import now
from workers.turns import IO

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.turns")

#: A snapshot of nothing: msgpack's nil.
NOTHING = b"\xc0"


def kept(engine: Engine, snapshot: bytes) -> Any:
    """What the last turn kept for a rebuild. One that cannot be read is as good as none."""
    try:
        return unpack(snapshot, engine.settings.snapshot_limit) if snapshot else None
    except ValueError as error:
        logger.warning("%s: the agent comes back cold", error)
        return None


async def take(engine: Engine, io: IO, copy: Copy) -> bytes:
    """What to send so that Redis has this agent's snapshot, and no other; b'' if that is so already."""
    data = NOTHING
    try:
        value = engine.lifecycle.snapshot(copy.agent)
        if inspect.isawaitable(value):
            value = await io.resolve(value, engine.settings.release_limit)
        data = pack(value, engine.settings.snapshot_limit)
    except (Exception, SystemExit):
        logger.exception("no snapshot of %r: its next build elsewhere will be cold", copy.session)
    fading = not copy.saved_at or now() - copy.saved_at > engine.settings.snapshot_ttl / 2
    return b"" if digest(data) == copy.saved and (data == NOTHING or not fading) else data


def sent(engine: Engine, copy: Copy, snapshot: bytes) -> None:
    """Redis has taken what `take` gave."""
    if snapshot:
        copy.saved, copy.saved_at = digest(snapshot), now()


def digest(snapshot: bytes) -> bytes | None:
    """What a copy remembers of the snapshot that Redis has: b'' for none, None where that is not known."""
    if not snapshot:
        return None
    return b"" if snapshot == NOTHING else hashlib.blake2b(snapshot, digest_size=16).digest()
