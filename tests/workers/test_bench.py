"""`greenroom bench`: what it prints. How fast anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coordinator", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_http() -> None:
    run = bench("http", "--quick", "--json")
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    assert [one["name"] for one in figures] == ["stock gateway", "local turn", "forwarded turn"]
    for one in figures:
        assert 0 < one["p50"] <= one["p99"]
        assert one["low"] <= one["added"] <= one["high"]
    assert figures[0]["added"] == 0
    shown = bench("http", "--quick")
    assert "forwarded turn" in shown.stdout
    assert bench("http", "--redis", "redis://localhost").returncode == 2
