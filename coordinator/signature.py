"""Which config an agent was built with, as one keyed digest: another signature means another agent (B1–B6a).

The canonical form tags every value with its type and length, sorts what has no order (mapping keys, sets, toolsets) and
goes whole, credentials included, through one keyed BLAKE2b. Nothing of it can be read back, and nothing of it is put
into an error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any

KEY_VARIABLE = "GREENROOM_SIGNATURE_KEY"
_NO_KEY = b"greenroom: no signature key was set"
_SIGNED = ("model", "runtime", "toolsets", "ephemeral_prompt", "extra")


def config_signature(
    model: str | None,
    runtime: Mapping[str, Any] | None = None,
    toolsets: Iterable[str] | None = None,
    ephemeral_prompt: str | None = "",
    extra: Mapping[str, Any] | None = None,
    key: str | bytes | None = None,
) -> str:
    """Sign what is baked into an agent when it is built.

    `runtime` holds provider, base URL, API mode and credentials; `extra` whatever else the agent freezes (context
    length, tool-registry generation, user id …). Reasoning settings and callbacks are per message and do not belong
    here. The key comes from the argument or GREENROOM_SIGNATURE_KEY; without one a constant is used.
    """
    names = () if toolsets is None else toolsets
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise ValueError("config.toolsets cannot be signed: pass a list of names")
    names = list(names)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("config.toolsets cannot be signed: a toolset's name must be a string")
    for name, mapping in (("runtime", runtime), ("extra", extra)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ValueError(f"config.{name} cannot be signed: it must be a mapping, not a {type(mapping).__name__}")
    form = {
        "model": model or "",
        "runtime": runtime or {},
        "toolsets": frozenset(names),
        "ephemeral_prompt": ephemeral_prompt or "",
        "extra": extra or {},
    }
    secret = key if key is not None else os.environ.get(KEY_VARIABLE, "")
    secret = secret.encode() if isinstance(secret, str) else secret
    digest = blake2b(digest_size=16, key=blake2b(secret or _NO_KEY).digest(), person=b"greenroom-sig-1")
    try:
        digest.update(_canonical(form, "config"))
    except RecursionError:
        raise ValueError("config cannot be signed: it contains itself, or is nested too deep") from None
    return digest.hexdigest()


def sign(config: str | Mapping[str, Any] | None, key: str | bytes | None = None) -> str:
    """The signature of a turn's config: one that is ready (str), a mapping of `config_signature`'s arguments, or None.

    Whatever else the mapping holds is for the builder and signs nothing.
    """
    from coordinator.names import signature_name

    if isinstance(config, str):
        return signature_name(config)
    if config is None:
        config = {}
    if not isinstance(config, Mapping):
        raise ValueError(f"a config is a signature, a mapping or None, not a {type(config).__name__}")
    if config and not any(name in config for name in _SIGNED):
        raise ValueError(f"a config that signs nothing: it has none of {', '.join(_SIGNED)}; the empty one is None")
    return config_signature(**{"model": "", **{name: config[name] for name in _SIGNED if name in config}}, key=key)


def _canonical(value: Any, path: str) -> bytes:
    """Bytes that are equal exactly when two values are: type tag, length, content."""
    match value:
        case None:
            return b"n;"
        case bool():
            return b"t;" if value else b"f;"
        case int():
            return _tagged(b"i", b"%d" % value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{path} cannot be signed: a number must be finite")
            return _tagged(b"d", repr(value).encode())
        case str():
            try:
                return _tagged(b"s", value.encode())
            except UnicodeEncodeError:
                raise ValueError(f"{path} cannot be signed: it is not valid Unicode") from None
        case bytes() | bytearray():
            return _tagged(b"b", bytes(value))
        case Mapping():
            if not all(isinstance(name, str) for name in value):
                raise ValueError(f"{path} cannot be signed: a mapping's keys must be strings")
            return _tagged(
                b"m", b"".join(_canonical(k, path) + _canonical(value[k], f"{path}.{k}") for k in sorted(value))
            )
        case AbstractSet():
            return _tagged(b"u", b"".join(sorted(_canonical(item, f"{path}[]") for item in value)))
        case list() | tuple():
            return _tagged(b"l", b"".join(_canonical(item, f"{path}[]") for item in value))
    raise ValueError(
        f"{path} cannot be signed, being of type {type(value).__name__}; allowed: None, bool, int, float, str, bytes, "
        "mappings with string keys, lists, tuples and sets of these"
    )


def _tagged(tag: bytes, content: bytes) -> bytes:
    return b"%b%d:%b;" % (tag, len(content), content)
