"""Greenroom's holding half: processes that keep agents between turns, and let them go when told."""

from workers.aio import AsyncWorker
from workers.lifecycle import Lifecycle
from workers.worker import Worker

__all__ = ["AsyncWorker", "Lifecycle", "Worker"]
