"""The names of a room's keys. `lua/README.md` says what each holds; the scripts build theirs from the same prefix."""

from __future__ import annotations

from coordinator.names import room_name

#: Version of the layout below `greenroom:{room}:`; a worker with another one is refused.
SCHEMA = "1"


class Keys:
    """All key names of one room. The braces keep a room in one cluster slot."""

    def __init__(self, room: str) -> None:
        self.room = room_name(room)
        self.prefix = f"greenroom:{{{room}}}:"
        for name in (
            "lru", "activity", "leases", "signatures", "workers", "clock", "epoch", "grace", "settings",
            "counters", "journal", "closing", "over", "aliases", "maintenance", "turns",
        ):  # fmt: skip
            setattr(self, name, self.prefix + name)

    lru: str
    activity: str
    leases: str
    signatures: str
    workers: str
    clock: str
    epoch: str
    grace: str
    settings: str
    counters: str
    journal: str
    closing: str
    over: str
    aliases: str
    maintenance: str
    turns: str

    def session(self, session: str) -> str:
        return f"{self.prefix}session:{session}"

    def worker(self, worker: str) -> str:
        return f"{self.prefix}worker:{worker}"

    def held(self, worker: str) -> str:
        return f"{self.prefix}held:{worker}"

    def waiting(self, session: str) -> str:
        return f"{self.prefix}waiting:{session}"

    def snapshot(self, session: str) -> str:
        return f"{self.prefix}snapshot:{session}"

    def channel(self, worker: str) -> str:
        """Where a worker hears of evictions, interrupts and its turn in a queue."""
        return f"{self.prefix}evict:{worker}"
