"""Greenroom's deciding half: who is in the room, who is on stage, who must go. State in Redis, changed by Lua only."""

from coordinator.errors import (
    AlreadyStarted,
    BuildFailed,
    CoordinatorUnavailable,
    GreenroomError,
    InvalidName,
    LeaseLost,
    MessageAnswered,
    SessionBusy,
    SessionElsewhere,
    WorkerDraining,
    WorkerExists,
    WorkerNotRunning,
)
from coordinator.limits import Limits
from coordinator.room import AsyncCoordinator, Coordinator
from coordinator.signature import config_signature

__all__ = [
    "AlreadyStarted",
    "AsyncCoordinator",
    "BuildFailed",
    "Coordinator",
    "CoordinatorUnavailable",
    "GreenroomError",
    "InvalidName",
    "LeaseLost",
    "Limits",
    "MessageAnswered",
    "SessionBusy",
    "SessionElsewhere",
    "WorkerDraining",
    "WorkerExists",
    "WorkerNotRunning",
    "config_signature",
]
__version__ = "0.1.0"
