"""Which config may reuse an agent: B1–B6a."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from support.fleet import CONFIG, Fleet

from coordinator import Limits, config_signature

CONFIG_ARGUMENTS: dict[str, Any] = {
    "model": "sonnet",
    "runtime": {
        "provider": "anthropic",
        "base_url": "https://api.example/v1",
        "api_mode": "messages",
        "api_key": "eyJhbGciOiJIUzI1NiJ9.first",
        "headers": {"x-team": "red", "x-region": "eu"},
    },
    "toolsets": ["web", "terminal", "browser"],
    "ephemeral_prompt": "Be brief.",
    "extra": {"context_length": 200_000, "compression": {"at": 0.8, "keep": 4}},
    "key": "a key for tests",
}
#: What the config above signed as on the day this test was written.
ON_ANOTHER_DAY = "6a44f00f54f7366e1b71ff3d8da725ce"


def signed(**changes: Any) -> str:
    return config_signature(**CONFIG_ARGUMENTS | changes)


def with_runtime(**changes: Any) -> str:
    return signed(runtime=CONFIG_ARGUMENTS["runtime"] | changes)


def shuffled(value: Any, luck: random.Random) -> Any:
    """The same mapping with its keys in another order, all the way down."""
    if not isinstance(value, dict):
        return value
    names = list(value)
    luck.shuffle(names)
    return {name: shuffled(value[name], luck) for name in names}


def test_b1_the_same_config_signs_the_same_whatever_the_order() -> None:
    """B1: the same config gives the same signature, whatever the order of dict keys or toolsets."""
    luck = random.Random(1)
    for _ in range(50):
        config = shuffled(CONFIG_ARGUMENTS, luck)
        luck.shuffle(tools := list(config["toolsets"]))
        assert config_signature(**config | {"toolsets": tools}) == signed()
    for toolsets in (tuple(CONFIG_ARGUMENTS["toolsets"]), set(CONFIG_ARGUMENTS["toolsets"]), ["web", "web", *tools]):
        assert signed(toolsets=toolsets) == signed()


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_b1_the_same_config_signs_the_same_in_any_process(seed: str) -> None:
    """B1: in any process: another one, with another hash seed, finds the same signature."""
    program = "import json, sys; from coordinator import config_signature as s; print(s(**json.load(sys.stdin)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(CONFIG_ARGUMENTS),
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == signed()


def test_b1_the_same_config_signs_the_same_on_any_day() -> None:
    """B1: on any day: an upgrade that signs differently would throw every warm agent away."""
    assert signed() == ON_ANOTHER_DAY


def test_b2_another_model_signs_differently() -> None:
    """B2: another model gives another signature."""
    assert len({signed(model=model) for model in ("sonnet", "sonnet-2", "Sonnet", "sonnet ", "")}) == 5


def test_b3_the_whole_api_key_counts() -> None:
    """B3: two API keys that share a prefix (JWTs begin alike) give different signatures."""
    prefix = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." * 40
    keys = [prefix, prefix + "a", prefix + "b", "b" + prefix]
    assert len({with_runtime(api_key=key) for key in keys}) == len(keys)


def test_b3_the_digest_is_keyed() -> None:
    """B3: only a keyed digest enters the signature: without the signing key nobody can try API keys out."""
    assert len({signed(key="one"), signed(key="two"), signed(key=b""), signed(key=None)}) == 3
    assert signed(key="one") == signed(key=b"one")
    assert len(signed()) == 32


@pytest.mark.processes
async def test_b3_the_key_never_leaves_the_process(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """B3: the key itself never leaves the process: not into Redis, not into a message, not into a log."""
    secret = "sk-whoever-reads-this-can-spend-money"
    config = CONFIG | {"runtime": CONFIG["runtime"] | {"api_key": secret}}
    caplog.set_level(logging.DEBUG)
    one, two = await fleet.workers(2, limits=Limits(room=1))
    with fleet.client.pubsub() as ear:
        ear.psubscribe(fleet.keys.prefix + "*")
        await fleet.say(one, "telegram:1", config=config)
        await fleet.say(two, "telegram:1", config=config)
        await fleet.say(two, "telegram:2", config=config | {"model": "opus"})
        assert await two.evict("telegram:2", "hard")
        await fleet.settle()
        heard = []
        while message := ear.get_message(timeout=0.05):
            heard.append(repr(message))
    assert any("telegram:1" in message for message in heard), "the test hears what is said"
    stored = repr([_dump(fleet, key) for key in fleet.client.scan_iter(match=fleet.keys.prefix + "*")])
    assert "telegram:2" in stored, "the test sees what is stored"
    logged = [*await fleet.warnings(""), *(record.getMessage() for record in caplog.records)]
    for place in (stored, repr(heard), repr(logged)):
        assert secret not in place
        assert secret[:12] not in place


def _dump(fleet: Fleet, key: bytes) -> Any:
    """Whatever a key holds."""
    match fleet.client.type(key):
        case b"hash":
            return key, fleet.client.hgetall(key)
        case b"zset":
            return key, fleet.client.zrange(key, 0, -1, withscores=True)
        case b"stream":
            return key, fleet.client.xrange(key)
        case _:
            return key, fleet.client.get(key)


@pytest.mark.parametrize("name", ["provider", "base_url", "api_mode"])
def test_b4_another_route_signs_differently(name: str) -> None:
    """B4: another provider, base URL or API mode gives another signature."""
    runtime = CONFIG_ARGUMENTS["runtime"]
    without = {key: value for key, value in runtime.items() if key != name}
    others = [with_runtime(**{name: value}) for value in ("elsewhere", "", None, runtime[name] + "/")]
    assert len({signed(), signed(runtime=without), *others}) == 6


def test_b5_another_set_of_toolsets_signs_differently() -> None:
    """B5: another set of toolsets gives another signature."""
    sets = ([], ["web"], ["web", "terminal"], ["terminal"], ["webterminal"], ["web,terminal"], ["web", "Terminal"])
    assert len({signed(toolsets=toolsets) for toolsets in sets}) == len(sets)


@pytest.mark.processes
async def test_b6_reasoning_and_callbacks_are_no_part_of_it(fleet: Fleet) -> None:
    """B6: reasoning settings are per message: they are no part of the signature. Nor are callbacks."""
    one, two = await fleet.workers(2)
    await fleet.say(two, "telegram:2")
    first = await fleet.say(one, "telegram:1", config=CONFIG | {"reasoning": {"effort": "low"}})
    again = await fleet.say(
        one, "telegram:1", config=CONFIG | {"reasoning": {"effort": "high"}, "callbacks": ["on_step"], "stream": True}
    )
    assert (first.fresh, again.fresh) == (True, False)
    assert again.serial == first.serial
    assert fleet.look("telegram:1").signature == fleet.look("telegram:2").signature
    assert fleet.evictions == 0


@pytest.mark.parametrize(
    "extra",
    [
        {"context_length": 200_000},
        {"max_tokens": 4096},
        {"compression": {"at": 0.8}},
        {"tool_registry_generation": 7},
        {"memory_provider": "honcho"},
        {"user_id": "42"},
        {"requested_route": "fast"},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_b6a_extra_values_that_are_baked_in_sign(extra: dict[str, Any]) -> None:
    """B6a: extra values that are baked into an agent when it is built can be passed as extra keys."""
    (name,) = extra
    assert (
        len({signed(extra=None), signed(extra=extra), signed(extra={name: "other"}), signed(extra={name: None})}) == 4
    )


def test_b6a_no_extras_sign_alike() -> None:
    """B6a: leaving them out, passing none and passing an empty dict are the same."""
    arguments = {name: value for name, value in CONFIG_ARGUMENTS.items() if name != "extra"}
    assert config_signature(**arguments) == signed(extra=None) == signed(extra={})
    assert config_signature(**arguments) != signed()
