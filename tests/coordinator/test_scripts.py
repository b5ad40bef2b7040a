"""The Lua files: put together, contracts on top, bounded in length, and shipped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import coordinator
import workers
from coordinator import scripts
from coordinator.errors import _CODES

ROOT = Path(__file__).parents[2]


def test_every_file_is_a_script_that_is_known() -> None:
    assert {path.stem for path in (ROOT / "lua").glob("*.lua")} == set(scripts.NAMES)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_script_opens_with_its_contract(name: str) -> None:
    head = (ROOT / "lua" / f"{name}.lua").read_text().split("\nlocal ")[0]
    for part in ("-- KEYS[1]", "-- ARGV", "-- Returns"):
        assert part in head, f"{name}.lua does not say its {part}"


@pytest.mark.parametrize("path", sorted((ROOT / "lua").rglob("*.lua")), ids=lambda path: str(path.name))
def test_a_script_fits_into_a_head(path: Path) -> None:
    code = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("--")]
    assert len(code) <= 80


def test_every_error_code_in_lua_has_its_exception() -> None:
    found = {
        code for script in scripts.scripts().values() for code in re.findall(r"error_reply\('(\w+)", script.source)
    }
    assert found - {"BADARG"} == set(_CODES)


def test_only_one_function_drops_a_copy() -> None:
    """Rule 10: nothing else takes a session out of the indices, or counts an eviction."""
    for path in (ROOT / "lua").rglob("*.lua"):
        if path.name != "drop.lua":
            body = path.read_text()
            assert "'ZINCRBY', room.prefix .. 'signatures', -1" not in body
            assert not re.search(r"'ZREM', \S*( \.\. )?'lru'", body), path.name
            assert "evictions:" not in body


def test_includes_come_once_and_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "begin.lua").write_text("-- include: b\n-- include: c\nreturn b() + c()\n")
    (tmp_path / "b.lua").write_text("-- include: c\nlocal function b() return c() end\n")
    (tmp_path / "c.lua").write_text("local function c() return 1 end\n")
    monkeypatch.setattr(scripts, "folder", lambda: tmp_path)
    lines = scripts.load("begin").source.splitlines()
    assert lines == ["local function c() return 1 end", "local function b() return c() end", "return b() + c()"]


def test_a_cycle_of_includes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "begin.lua").write_text("-- include: b\n")
    (tmp_path / "b.lua").write_text("-- include: begin\n")
    monkeypatch.setattr(scripts, "folder", lambda: tmp_path)
    with pytest.raises(scripts.IncludeCycle, match="begin → b → begin"):
        scripts.load("begin")


def test_scripts_that_are_missing_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "__file__", str(tmp_path / "coordinator" / "scripts.py"))
    with pytest.raises(FileNotFoundError, match="Lua scripts are missing"):
        scripts.folder()


def test_the_scripts_can_be_written_out(tmp_path: Path) -> None:
    scripts.write(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(scripts.NAMES)


@pytest.mark.parametrize(("module", "names"), [
    (coordinator, "AlreadyStarted AsyncCoordinator BuildFailed Coordinator CoordinatorUnavailable GreenroomError "
                  "InvalidName LeaseLost Limits MessageAnswered SessionBusy SessionElsewhere WorkerDraining "
                  "WorkerExists WorkerNotRunning config_signature"),
    (workers, "AsyncWorker Lifecycle Worker"),
])  # fmt: skip
def test_the_public_names_are_pinned(module: ModuleType, names: str) -> None:
    assert sorted(module.__all__) == sorted(names.split())


def test_coordinator_never_imports_workers() -> None:
    for path in (ROOT / "coordinator").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) workers", path.read_text(), re.MULTILINE), path.name
    code = "import sys, coordinator.cli; sys.exit(any(name.split('.')[0] == 'workers' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
