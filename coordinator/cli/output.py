"""What commands print: tables for people, JSON for programs.

Names of sessions are other people's data: whatever is printed goes through `shown`, and never through rich's markup.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator.limits import Limits, size_text

#: Where the room sets no limits.
OWN = "each worker's own apply"


def fail(message: str, code: int = 1) -> int:
    print(f"greenroom: {shown(message)}", file=sys.stderr)
    return code


def show(options: argparse.Namespace, value: Any, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """A value as JSON, if that is wanted, or its rows as columns. In a pipe nothing is folded."""
    if options.json:
        print(json.dumps(value, indent=2, default=asdict))
        return 0
    table = Table(*titles, box=None, show_header=bool(titles), pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(shown(cell), overflow="fold") for cell in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)
    return 0


def shown(text: object) -> str:
    """Text that is safe on a terminal: what cannot be printed is escaped, as Python would write it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def place(source: Any) -> str:
    """Where a Redis URL points to, without its user and password."""
    url = urlsplit(source) if isinstance(source, str) else urlsplit("redis://client")
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def clock(at: float) -> str:
    """A Unix time as the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"


def span(seconds: float | None) -> str:
    """A length of time for people."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds is not None and seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return "–" if seconds is None else f"{seconds:.1f} s"


def readable(limits: Limits) -> dict[str, str]:
    """Limits as a person would set them."""
    ttl, memory = limits.idle_ttl, cast("int | None", limits.memory)
    shown = {"idle_ttl": None if ttl is None else span(ttl), "memory": None if memory is None else size_text(memory)}
    return {name: words(value) for name, value in (asdict(limits) | shown).items()}


def words(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {words(one)}" for name, one in value.items())
    return "none" if value is None else str(value)
