"""Bad names and settings are refused with a sentence that says what is allowed, before anything is written."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coordinator import InvalidName, Limits, config_signature
from coordinator.limits import size, size_text
from coordinator.names import (
    mode_name,
    new_worker_name,
    reason_name,
    room_name,
    session_name,
    signature_name,
    worker_name,
)
from coordinator.settings import Settings, limits_from
from coordinator.signature import sign


@pytest.mark.parametrize("name", ["a", "telegram:12345", "ü" * 256, "{x}*?", "a b", "<b>", "\u202ertl", "x" * 512])
def test_sessions_that_are_allowed(name: str) -> None:
    assert session_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 513, "ü" * 257, "a\nb", "a\x00", "\x1b[31m", "a\x9fb", "\ud800", 7, None, b"x"]
)
def test_sessions_that_are_not(name: Any) -> None:
    with pytest.raises(InvalidName, match=r"a session is 1–512 bytes of UTF-8 without control characters"):
        session_name(name)


@pytest.mark.parametrize(("check", "good", "bad"), [
    (room_name, ["default", "a.b-c_D9", "x" * 64], ["", "x" * 65, "a b", "a{b", "a:b", "ü", None, "a\n"]),
    (worker_name, ["host-1-a0b1c2", "a:b", "x" * 128], ["", "x" * 129, "a b", "a/b", 3, "a\n"]),
    (signature_name, ["0123abcdef", "v1:x/y"], ["", "x" * 129, "a b", "ü", 1.5]),
])  # fmt: skip
def test_other_names(check: Any, good: list[str], bad: list[Any]) -> None:
    for name in good:
        assert check(name) == name
    for name in bad:
        with pytest.raises(InvalidName, match=r"^a \w+"):
            check(name)


def test_modes_and_reasons_are_from_a_list() -> None:
    assert mode_name("hard") == "hard"
    assert reason_name("idle") == "idle"
    with pytest.raises(ValueError, match="unknown mode 'firm': one of soft, hard"):
        mode_name("firm")
    with pytest.raises(ValueError, match="unknown reason 'because': one of lru, idle"):
        reason_name("because")


def test_a_new_worker_name_is_allowed_and_unique() -> None:
    names = {new_worker_name() for _ in range(20)}
    assert len(names) == 20
    for name in names:
        worker_name(name)


@pytest.mark.parametrize("field", ["room", "worker", "idle_ttl", "memory"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "many", [3]])
def test_wrong_limits_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"limit {field} must be"):
        Limits(**{field: value})


@pytest.mark.parametrize(("text", "size"), [
    ("4GiB", 4 << 30), ("512MB", 512_000_000), ("2g", 2 << 30), ("1.5 KiB", 1536), ("100", 100), (12345, 12345),
])  # fmt: skip
def test_memory_limits_are_read_as_sizes(text: Any, size: int) -> None:
    assert Limits(memory=text).memory == size


def test_limits_count_whole_agents() -> None:
    with pytest.raises(ValueError, match="whole number"):
        Limits(room=1.5)  # type: ignore[arg-type]
    assert Limits(room=3, idle_ttl=0.5) == Limits(3, None, 0.5, None)


def test_settings_come_from_arguments_then_the_environment_then_defaults() -> None:
    environ = {"GREENROOM_REDIS_URL": "redis://elsewhere", "GREENROOM_ROOM": "blue", "GREENROOM_LEASE": "12.5"}
    loaded = Settings.load(environ, room="red", lease=None)
    assert (loaded.redis, loaded.room, loaded.lease, loaded.connections) == ("redis://elsewhere", "red", 12.5, 64)
    with pytest.raises(ValueError, match="GREENROOM_LEASE must be a number, not 'soon'"):
        Settings.load({"GREENROOM_LEASE": "soon"})
    with pytest.raises(TypeError, match="unknown setting 'leese'"):
        Settings.load({}, leese=3)
    for wrong in (0, -3, math.nan, math.inf, "x", True):
        with pytest.raises(ValueError, match="lease must be a number above zero"):
            Settings.load({}, lease=wrong)


def test_limits_come_from_the_environment() -> None:
    environ = {"GREENROOM_LIMIT_ROOM": "512", "GREENROOM_LIMIT_IDLE_TTL": "1.5", "GREENROOM_LIMIT_MEMORY": "1GiB"}
    assert limits_from(environ) == Limits(room=512, idle_ttl=1.5, memory=1 << 30)
    assert limits_from({}) == Limits()
    with pytest.raises(ValueError, match="GREENROOM_LIMIT_WORKER must be a number"):
        limits_from({"GREENROOM_LIMIT_WORKER": "few"})


@pytest.mark.parametrize("value", [object(), math.nan, {1: 2}, "\ud800", lambda: 0, [object()]])
def test_a_config_that_cannot_be_signed_is_refused_without_its_value(value: Any) -> None:
    with pytest.raises(ValueError, match=r"config\.runtime\.api_key") as raised:
        config_signature("m", {"api_key": value})
    assert "cannot be signed" in str(raised.value)


def test_configs_of_the_wrong_shape_are_refused_too() -> None:
    itself: dict[str, Any] = {}
    itself["x"] = itself
    for wrong in ({"toolsets": [["a"]]}, {"toolsets": 5}, {"runtime": 5}, {"extra": "x"}, {"runtime": itself}):
        with pytest.raises(ValueError, match="cannot be signed"):
            sign(wrong)
    for limit in ({"memory": "9" * 400 + "b"}, {"idle_ttl": 10**400}, {"room": 2**60}):
        with pytest.raises(ValueError, match="limit"):
            Limits(**limit)
    with pytest.raises(ValueError, match="a tenth of a second"):
        Settings.load({}, lease=0.0004)


def test_what_may_be_a_config() -> None:
    assert sign("0123abc") == "0123abc"
    assert sign(None) == sign({}) == config_signature("")
    assert sign({"model": "m", "reasoning": object()}) == config_signature("m")
    with pytest.raises(ValueError, match="a config is a signature, a mapping or None"):
        sign(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass a list of names"):
        sign({"toolsets": "web"})


def test_values_that_look_alike_sign_differently() -> None:
    looks = [1, 1.0, "1", True, b"1", [1], {"1": 1}, None, {1}, [[1]], ["1"]]
    signed = [config_signature("m", {"x": value}) for value in looks]
    assert len(set(signed)) == len(looks)
    assert config_signature("m", {"x": (1, 2)}) == config_signature("m", {"x": [1, 2]})


@pytest.mark.parametrize(("text", "bytes_"), [
    ("4GiB", 4 << 30), ("512MiB", 512 << 20), ("3B", 3), ("1500B", 1500), ("2048TiB", 2048 << 40),
])  # fmt: skip
def test_a_size_is_written_as_it_is_read(text: str, bytes_: int) -> None:
    assert size_text(bytes_) == text
    assert size(text) == bytes_
