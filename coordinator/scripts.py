"""The Lua scripts: found, put together from their includes, and known by their digest.

A line `-- include: lib/name` stands for that file; each file comes in once, before the script that asks for it, and a
cycle is an error. Each script opens with its contract, which is read as well (see `Contract`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^-- include: (\S+)\n", re.MULTILINE)
_ARGV = re.compile(r"^-- ARGV.*(?:\n--  .*)*", re.MULTILINE)
_NUMBERED = re.compile(r"  (\d+) (\w+)")
_REPEATED = re.compile(r"  then (\w+(?:, \w+)*) … : at most (\w+)")
_BATCH = re.compile(r"^local BATCH = (\d+)$", re.MULTILINE)

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


@dataclass(frozen=True, slots=True)
class Contract:
    """What the comment on top of a script says of its ARGV: `1 session  2 turn: its id`, each number with its name, and
    perhaps `then session, generation … : at most BATCH pairs` behind."""

    arguments: tuple[str, ...]
    repeated: tuple[str, ...] = ()
    most: int = 0  #: how often those that repeat may come in one call


def contract(name: str) -> Contract:
    """The contract of one script, from its own file."""
    comment = (folder() / f"{name}.lua").read_text().split("\nlocal ")[0]
    section = _ARGV.search(comment)
    if not section:
        raise ValueError(f"{name}.lua does not say its ARGV")
    said = section[0].replace("\n--", "  ")
    numbered = _NUMBERED.findall(said)
    if [int(number) for number, _ in numbered] != list(range(1, len(numbered) + 1)):
        raise ValueError(f"{name}.lua does not number its ARGV from 1")
    arguments = tuple(argument for _, argument in numbered)
    rest = _REPEATED.search(said)
    if not rest:
        return Contract(arguments)
    return Contract(arguments, tuple(rest[1].split(", ")), int(rest[2]) if rest[2].isdecimal() else batch_size())


@cache
def batch_size() -> int:
    """How many sessions go into one call (rule 13), as `lib/batch.lua` says."""
    found = _BATCH.search((folder() / "lib" / "batch.lua").read_text())
    if not found:
        raise ValueError("lib/batch.lua does not say how many sessions go into one call")
    return int(found[1])


@cache
def scripts() -> dict[str, Script]:
    """All scripts by name."""
    return {name: load(name) for name in NAMES}


def write(target: Path) -> None:
    """Write the whole scripts to a folder, for luacheck and for whoever wants to read them in one piece."""
    for script in scripts().values():
        (target / f"{script.name}.lua").write_text(script.source)
