"""Greenroom's deciding half: who is in the room, who is on stage, who must go. State in Redis, changed by Lua only."""

from coordinator.errors import (
    BuildFailed,
    CoordinatorUnavailable,
    GreenroomError,
    InvalidName,
    LeaseLost,
    SessionBusy,
    SessionElsewhere,
    WorkerDraining,
)
from coordinator.limits import Limits
from coordinator.room import AsyncCoordinator, Coordinator
from coordinator.signature import config_signature

__all__ = [
    "AsyncCoordinator",
    "BuildFailed",
    "Coordinator",
    "CoordinatorUnavailable",
    "GreenroomError",
    "InvalidName",
    "LeaseLost",
    "Limits",
    "SessionBusy",
    "SessionElsewhere",
    "WorkerDraining",
    "config_signature",
]
__version__ = "0.1.0"
