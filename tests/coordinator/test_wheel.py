"""The wheel, as a user gets it: built, installed into a clean venv, every script loaded from inside the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from coordinator.private_redis import PrivateRedis
from coordinator.scripts import NAMES

ROOT = Path(__file__).parents[2]

_LOAD_ALL = """
import sys
from pathlib import Path
import redis
import coordinator, workers
from coordinator.scripts import folder, scripts

inside = Path(coordinator.__file__).parent
assert "site-packages" in str(inside), inside
assert folder() == inside / "lua", folder()
with redis.Redis.from_url(sys.argv[1]) as client:
    for script in scripts().values():
        assert client.execute_command("SCRIPT LOAD", script.source) in (script.sha, script.sha.encode())
print(len(scripts()))
"""


@pytest.mark.timeout(240)
def test_the_wheel_carries_the_scripts(tmp_path: Path, server: PrivateRedis) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next((tmp_path / "dist").glob("greenroom-*.whl"))
    files = zipfile.ZipFile(wheel).namelist()
    assert {f"coordinator/lua/{name}.lua" for name in NAMES} <= set(files)
    assert "coordinator/py.typed" in files
    assert not [name for name in files if name.startswith(("tests/", "lua/"))]

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    loaded = subprocess.run(
        [python, "-c", _LOAD_ALL, server.url], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert int(loaded.stdout) == len(NAMES)
    shown = subprocess.run([str(venv / "bin" / "greenroom"), "--version"], check=True, capture_output=True, text=True)
    assert "0.1.0" in shown.stdout
