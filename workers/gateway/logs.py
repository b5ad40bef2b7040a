"""What the gateway's commands write to stderr."""

from __future__ import annotations

import logging
import os
import sys

from coordinator.cli.command import BadUsage


def log_to_stderr() -> None:
    """Everything from GREENROOM_LOG_LEVEL on."""
    level = os.environ.get("GREENROOM_LOG_LEVEL") or "INFO"
    if level.upper() not in logging.getLevelNamesMapping():
        raise BadUsage(f"GREENROOM_LOG_LEVEL is DEBUG, INFO, WARNING, ERROR or CRITICAL, not {ascii(level)[:40]}")
    line = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    logging.basicConfig(level=level.upper(), format=line, stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it writes a line for each message that is passed on
