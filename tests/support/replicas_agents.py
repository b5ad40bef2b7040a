"""Agents that do something to their own replica."""

from __future__ import annotations

import os
import signal
from typing import Any


class Suicidal:
    """Asks its own replica to go, in the middle of a turn."""

    def run(self, message: str) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "gone soon"


def suicidal(request: Any) -> Suicidal:
    return Suicidal()
