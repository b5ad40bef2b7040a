"""The Lua scripts: found, put together from their includes, and known by their digest.

A line `-- include: lib/name` stands for that file; each file comes in once, before the script that asks for it, and a
cycle is an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^-- include: (\S+)\n", re.MULTILINE)

NAMES = (
    "begin", "commit", "end", "abandon", "rebind", "interrupt",
    "evict", "evict_many", "closed", "register", "beat", "maintain", "claim", "disown",
    "drain", "deregister", "set_limits",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """One operation, ready to be sent."""

    name: str
    source: str
    sha: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest())


class IncludeCycle(ValueError):
    """A Lua file includes itself, by whatever way."""


def folder() -> Path:
    """Where the Lua files are: inside the package when installed, beside it in a checkout."""
    here = Path(__file__).parent
    for place in (here / "lua", here.parent / "lua"):
        if (place / "begin.lua").exists():
            return place
    raise FileNotFoundError("the Lua scripts are missing: neither coordinator/lua nor lua beside it has begin.lua")


def load(name: str, change: Callable[[str, str], str] | None = None) -> Script:
    """One script with its includes. `change(file, text)` may alter each file: tests move the clock so."""
    root = folder()
    seen: list[str] = []

    def read(path: str, above: tuple[str, ...]) -> str:
        if path in above:
            raise IncludeCycle(" → ".join((*above, path)))
        if path in seen:
            return ""
        body = (root / f"{path}.lua").read_text()
        if change:
            body = change(path, body)
        parts = [read(include, (*above, path)) for include in _INCLUDE.findall(body)]
        seen.append(path)
        return "".join(parts) + _INCLUDE.sub("", body).strip() + "\n"

    return Script(name, read(name, ()))


@cache
def scripts() -> dict[str, Script]:
    """All scripts by name."""
    return {name: load(name) for name in NAMES}


def write(target: Path) -> None:
    """Write the whole scripts to a folder, for luacheck and for whoever wants to read them in one piece."""
    for script in scripts().values():
        (target / f"{script.name}.lua").write_text(script.source)
