"""Bytes for Redis and back; a channel is open to anybody."""

from __future__ import annotations

import json

import pytest

from coordinator.codec import Message, message, pack, pairs, text, unpack


def test_replies_as_text() -> None:
    assert [text(raw) for raw in (b"\xc3\xa9", "x", 7, None)] == ["é", "x", "7", ""]
    assert pairs([b"a", b"1", b"b", 2]) == pairs({b"a": b"1", b"b": 2}) == {"a": "1", "b": "2"}


def test_snapshots_are_plain_data_under_a_size_limit() -> None:
    value = {"prompt": "é", "n": [1, 2.5, None, True], "raw": b"\x00"}
    assert unpack(pack(value, 1000), 1000) == value
    for bad in (b"\xc1", b"\x81", pack(1, 9) + b"x", b""):
        with pytest.raises(ValueError, match="not msgpack"):
            unpack(bad, 1000)
    with pytest.raises(ValueError, match="may have 3 bytes"):
        unpack(b"four", 3)
    with pytest.raises(ValueError, match="plain data"):
        pack({"x": object()}, 1000)
    with pytest.raises(ValueError, match="may have 10 bytes"):
        pack("x" * 100, 10)


def test_a_message_is_read() -> None:
    raw = b'{"v":1,"session":"telegram:1","generation":"1794977952081938","mode":"soft","reason":"lru"}'
    assert message(raw) == Message("soft", "telegram:1", 1794977952081938, reason="lru")


@pytest.mark.parametrize("raw", [
    b"", b"nonsense", b"[]", b"\xff", b"3", b'{"v":2,"mode":"soft"}', b'{"v":1,"mode":7}', b'{"v":1,"generation":"x"}',
    b'{"v":1,"generation":[]}', b"[" * 5000, b'{"v":1,"fence":1e999}',
    json.dumps({"v": 1, "session": "x" * 9000}).encode(),
])  # fmt: skip
def test_what_is_not_a_message_is_ignored(raw: bytes) -> None:
    assert message(raw) is None
