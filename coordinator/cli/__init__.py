"""The command `greenroom`: what an operator asks a room, and tells it.

Exit codes: 0; 1 when Redis or the room says no; 2 for bad usage, a bad name or setting; 130 after Ctrl-C.
"""

from coordinator.cli.program import main

__all__ = ["main"]
