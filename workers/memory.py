"""The memory limit of a worker: how much it uses, and how many idle agents it sheds."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return 0


def collect_and_trim() -> None:
    """Give freed memory back to the system, where its allocator can."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return


@dataclass(slots=True)
class MemoryGuard:
    """Decides, beat by beat. Pure: the caller measures and sheds.

    Over the limit it sheds an eighth of the idle agents at a time. After two batches that freed nothing it gives up,
    and starts again when memory was below the limit, or has grown by another eighth.
    """

    before: int = 0  #: resident when the last batch was shed; 0: none was
    fruitless: int = 0
    gave_up_at: int = 0

    def to_shed(self, limit: int | None, resident: int, idle: int) -> int:
        """How many idle agents go now."""
        if limit is None or resident <= limit:
            self.before = self.fruitless = self.gave_up_at = 0
            return 0
        if self.gave_up_at:
            if resident < self.gave_up_at * 9 / 8:
                return 0
            self.before = self.fruitless = self.gave_up_at = 0
        if self.before:
            self.fruitless = self.fruitless + 1 if resident >= self.before else 0
            self.before = 0
        if self.fruitless >= 2:
            self.gave_up_at = resident
            return 0
        if not idle:
            return 0
        self.before = resident
        return max(1, idle // 8)
