"""Python's stubs of the scripts, and the contracts on top of them: they agree, and say so when they do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator import operations, scripts
from coordinator.link import run
from coordinator.scripts import Contract, contract
from coordinator.stubs import ContractBroken, Stub

LUA = Path(__file__).parents[2] / "lua"
#: A binding such as `local session, lease = ARGV[1], tonumber(ARGV[2])`.
BINDING = re.compile(r"^local ([\w, ]+) = (.*ARGV\[.*)$", re.MULTILINE)
ELEMENT = re.compile(r"(?:tonumber\()?ARGV\[(\d+)\]\)?")


class Line:
    """A link that writes down what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    async def call(self, name: str, *argv: Any, retry: bool) -> str:
        self.sent.append((name, *argv, retry))
        return "answer"


def test_every_script_has_its_stub() -> None:
    stubs = {value._name for value in vars(operations).values() if isinstance(value, Stub)}
    assert stubs == set(scripts.NAMES)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_script_uses_what_its_contract_says(name: str) -> None:
    said, body = contract(name), (LUA / f"{name}.lua").read_text()
    code = "\n".join(line for line in body.splitlines() if not line.startswith("--"))
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", code)}
    assert used <= set(range(1, len(said.arguments) + 2)), "behind the last one only those that repeat"
    assert set(range(1, len(said.arguments) + 1)) <= used, "and none of them for nothing"
    loops = re.findall(r"for \w+ = (\d+), #ARGV(?:, (\d+))? do", code)
    if said.repeated:
        assert loops == [(str(len(said.arguments) + 1), str(len(said.repeated)) if len(said.repeated) > 1 else "")]
    else:
        assert loops == []


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_script_calls_its_arguments_what_its_contract_calls_them(name: str) -> None:
    said = contract(name)
    for names, values in BINDING.findall((LUA / f"{name}.lua").read_text()):
        for local, value in zip(names.split(", "), values.split(", "), strict=False):
            if (element := ELEMENT.fullmatch(value)) and int(element[1]) <= len(said.arguments):
                assert local == said.arguments[int(element[1]) - 1]


def test_a_stub_sends_what_it_is_given_in_the_order_of_the_contract() -> None:
    line, stub = Line(), Stub("disown", "worker", repeated="session generation")
    assert run(stub(line, ("s", 7), worker="w")) == "answer"  # type: ignore[arg-type]
    assert run(stub(line, worker="w", retry=False)) == "answer"  # type: ignore[arg-type]
    assert line.sent == [("disown", "w", "s", 7, True), ("disown", "w", False)]


@pytest.mark.parametrize("named", [{}, {"worker": "w", "session": "s"}, {"session": "s"}])
def test_a_call_with_other_names_is_refused(named: dict[str, str]) -> None:
    line = Line()
    with pytest.raises(ContractBroken, match=r"disown\.lua is not called with"):
        run(Stub("disown", "worker", repeated="session generation")(line, **named))  # type: ignore[arg-type]
    assert line.sent == []


@pytest.mark.parametrize(("arguments", "repeated"), [
    ("session", ""),
    ("session turn key more", ""),
    ("turn session key", ""),
    ("session turn key", "session"),
])  # fmt: skip
def test_a_stub_that_differs_from_its_script_does_not_load(arguments: str, repeated: str) -> None:
    with pytest.raises(ContractBroken, match=r"rebind\.lua is called with \(session turn key\)"):
        Stub("rebind", arguments, repeated=repeated)


@pytest.mark.parametrize(("comment", "said"), [
    ("-- ARGV     1 a  2 b: with 3 of them\n--          3 c", Contract(("a", "b", "c"))),
    ("-- ARGV     1 a  then b, c … : at most 5 pairs", Contract(("a",), ("b", "c"), 5)),
    ("-- ARGV     then b … : at most BATCH", Contract((), ("b",), 64)),
    ("-- ARGV     1 a\n-- Returns  1 b  2 c", Contract(("a",))),
])  # fmt: skip
def test_a_contract_is_read(comment: str, said: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scripts.batch_size() == 64
    (tmp_path / "begin.lua").write_text(f"-- Begin.\n{comment}\nlocal nothing = 1\n")
    monkeypatch.setattr(scripts, "folder", lambda: tmp_path)
    assert contract("begin") == said


@pytest.mark.parametrize(("comment", "wrong"), [
    ("-- KEYS[1]  the room's prefix", "does not say its ARGV"),
    ("-- ARGV     1 a  3 b", "does not number its ARGV"),
])  # fmt: skip
def test_a_contract_that_cannot_be_read_is_refused(
    comment: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "begin.lua").write_text(f"-- Begin.\n{comment}\nlocal nothing = 1\n")
    monkeypatch.setattr(scripts, "folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=wrong):
        contract("begin")


def test_a_batch_without_its_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "batch.lua").write_text("-- nothing\n")
    monkeypatch.setattr(scripts, "folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="how many sessions"):
        scripts.batch_size.__wrapped__()
