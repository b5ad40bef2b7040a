"""Scripts as Python calls them: by name, and with names.

A stub is declared in Python (`coordinator/operations.py`) and described in Lua, by the contract on top of its script.
The two are compared when the stub is made, so that they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.link import Link
from coordinator.scripts import contract


class ContractBroken(ValueError):
    """Python and Lua do not agree on what a script is called with."""


class Stub:
    """One script. `arguments` are the names of its ARGV, in order; `repeated` those that come again behind."""

    def __init__(self, name: str, arguments: str = "", *, repeated: str = "") -> None:
        said = contract(name)
        self._name, self._arguments, self._known = name, said.arguments, frozenset(said.arguments)
        self.most = said.most  #: how many of the repeated ones go into one call
        if said.arguments != tuple(arguments.split()) or said.repeated != tuple(repeated.split()):
            there = " ".join(said.arguments) + (f", then {' '.join(said.repeated)}" if said.repeated else "")
            here = arguments + (f", then {repeated}" if repeated else "")
            raise ContractBroken(f"{name}.lua is called with ({there}), and not with ({here})")

    async def __call__(self, link: Link, rest: Iterable[Any] = (), *, retry: bool = True, **named: Any) -> Any:
        """`rest`: what is repeated, one after the other."""
        if named.keys() != self._known:
            raise ContractBroken(f"{self._name}.lua is not called with {sorted(named.keys() ^ self._known)}")
        return await link.call(self._name, *[named[name] for name in self._arguments], *rest, retry=retry)
