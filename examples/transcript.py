"""A transcript store that refuses stale writers: the fence is checked in the same transaction as the write.

A lease can be lost without its owner knowing: a process that was paused for longer than its lease wakes up and goes
on. Redis refuses its end, but Redis does not see what it writes elsewhere. This store does: it keeps the highest fence
it has seen of each session, and a write with a lower one changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS fences (session TEXT PRIMARY KEY, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, session TEXT NOT NULL, fence INTEGER NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_session ON messages (session, id);
"""


class StaleFence(Exception):
    """A later turn has written already: this one lost its lease, and what it wanted to write does not count."""


class Transcript:
    """Messages of sessions, in SQLite. One connection a thread; several processes may share the file."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    def append(self, session: str, fence: int, messages: Iterable[tuple[str, str]]) -> None:
        """Add (role, content) pairs of the turn with this fence, all or none. StaleFence if a later turn was here."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            taken = self._db.execute(
                "INSERT INTO fences VALUES (?, ?) ON CONFLICT (session) DO UPDATE SET fence = excluded.fence "
                "WHERE excluded.fence >= fences.fence",
                (session, fence),
            )
            if taken.rowcount == 0:
                raise StaleFence(f"fence {fence} of {session!r} is stale: the store has seen {self.fence(session)}")
            rows = [(session, fence, role, content) for role, content in messages]
            self._db.executemany("INSERT INTO messages (session, fence, role, content) VALUES (?, ?, ?, ?)", rows)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def fence(self, session: str) -> int:
        """The highest fence that wrote; the floor to begin a turn with if Redis may have lost its clock."""
        row = self._db.execute("SELECT fence FROM fences WHERE session = ?", (session,)).fetchone()
        return row[0] if row else 0

    def messages(self, session: str) -> list[tuple[str, str]]:
        rows = self._db.execute("SELECT role, content FROM messages WHERE session = ? ORDER BY id", (session,))
        return [(role, content) for role, content in rows]
