"""The replica's OpenAPI document, and a page that shows it without asking anybody else for scripts."""

from __future__ import annotations

import html
import json
from typing import Any

from coordinator import __version__
from workers.gateway.problems import KINDS
from workers.gateway.requests import KEY, REPLAYED, SIGNED

_TITLE = "Greenroom gateway"
_ABOUT = (
    "One replica of a chat gateway. A message gets a turn on its session's agent, which is kept warm between turns. "
    "At most one turn runs on a session, in the whole fleet."
)


def _problems(*kinds: str) -> dict[str, Any]:
    """Responses for kinds of problems, by status."""
    by_status: dict[str, list[str]] = {}
    for kind in kinds:
        by_status.setdefault(str(KINDS[kind][0]), []).append(kind)
    schema = {"$ref": "#/components/schemas/Problem"}
    responses: dict[str, Any] = {}
    for status, names in sorted(by_status.items()):
        about = "; ".join(f"`{name}`: {KINDS[name][1].lower()}" for name in names)
        responses[status] = {"description": about, "content": {"application/problem+json": {"schema": schema}}}
        if status in ("409", "429", "503"):
            about = "seconds to wait before asking again"
            responses[status]["headers"] = {"Retry-After": {"description": about, "schema": {"type": "integer"}}}
    return responses


def _json(about: str, schema: Any) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def document() -> dict[str, Any]:
    """What may be asked and what is answered, as OpenAPI 3.1."""
    session = {
        "name": "session",
        "in": "path",
        "required": True,
        "description": "percent-encoded; 1–512 bytes of UTF-8 without control characters",
        "schema": {"type": "string", "minLength": 1, "maxLength": 512, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"},
    }
    key = {
        "name": KEY,
        "in": "header",
        "description": "what its sender calls the message. Sent again, to whichever replica, it gets the first answer "
        "and runs no second turn; while the first runs it waits for it; if that failed, it runs",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
    failures = ("agent-failed", "build-failed", "internal", "draining", "unavailable", "turn-lost")
    refusals = (
        "invalid-request",
        "forbidden",
        "not-found",
        "misdirected",
        "busy",
        "answered",
        "key-reused",
        "line-full",
        "interrupted",
        "too-slow",
        "too-large",
        "unsupported-media-type",
    )
    turn = {
        "summary": "Give a session's agent a message",
        "description": 'With `Accept: text/event-stream` the reply comes in events: `piece` with `{"piece": text}`, at '
        "last one `end` with what the JSON answer has, or one `error` with a problem. Lines that begin with a colon "
        "only show that the stream lives.",
        "parameters": [session, key],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("Message")}}},
        "responses": {
            "200": {
                "description": "the agent's reply",
                "headers": {
                    REPLAYED: {
                        "description": "`true`: an earlier delivery had this answer",
                        "schema": {"type": "string"},
                    }
                },
                "content": {
                    "application/json": {"schema": _ref("Answer")},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            },
            **_problems(*refusals, *failures),
        },
    }
    reset = {
        "summary": "End a session: its agent is closed, its snapshot forgotten; a turn that runs may finish first",
        "parameters": [session],
        "responses": {
            "200": _json("whether an agent was held for it", _ref("Reset")),
            **_problems(
                "invalid-request", "forbidden", "not-found", "misdirected", "internal", "unavailable", "draining"
            ),
        },
    }
    plain: Any = {"type": "object"}
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": __version__, "description": _ABOUT},
        "paths": {
            "/v1/sessions/{session}/turns": {"post": turn},
            "/v1/sessions/{session}": {"delete": reset},
            "/healthz": {"get": {"summary": "Does the process live?", "responses": {"200": _json("it does", plain)}}},
            "/readyz": {
                "get": {
                    "summary": "Should messages be sent here?",
                    "responses": {"200": _json("yes", _ref("Ready")), "503": _json("not now", _ref("Ready"))},
                }
            },
            "/openapi.json": {"get": {"summary": "This document", "responses": {"200": _json("the document", plain)}}},
            "/docs": {
                "get": {
                    "summary": "This document as a page",
                    "responses": {"200": {"description": "a page", "content": {"text/html": {"schema": _TEXT}}}},
                }
            },
            "/metrics": {
                "get": {
                    "summary": "Numbers for Prometheus",
                    "responses": {"200": {"description": "as text", "content": {"text/plain": {"schema": _TEXT}}}},
                }
            },
        },
        "components": {"schemas": _schemas()},
    }


_TEXT = {"type": "string"}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _schemas() -> dict[str, Any]:
    flag, number, whole = {"type": "boolean"}, {"type": "number"}, {"type": "integer"}
    config = {
        "type": ["object", "null"],
        "description": "what the agent is built with: `model`, `runtime`, `toolsets`, `ephemeral_prompt` and `extra` "
        "are signed, and another signature means another agent; the rest is for the builder",
        "properties": {
            "model": {"type": ["string", "null"]},
            "runtime": {"type": ["object", "null"]},
            "toolsets": {"type": ["array", "null"], "items": _TEXT},
            "ephemeral_prompt": {"type": ["string", "null"]},
            "extra": {"type": ["object", "null"]},
        },
        "anyOf": [{"type": "null"}, {"maxProperties": 0}, *({"required": [name]} for name in SIGNED)],
    }
    on_busy = {
        "type": "string",
        "enum": ["wait", "reject", "interrupt"],
        "default": "wait",
        "description": "if a turn runs: wait in line; answer 409; or ask that turn to stop, and wait",
    }
    message = _object("message", message=_TEXT, config=config, on_busy=on_busy) | {"additionalProperties": False}
    answer = _object(
        "reply session worker fence fresh forwarded",
        reply=_TEXT,
        session=_TEXT,
        worker=_TEXT | {"description": "which worker's agent answered"},
        fence=whole | {"description": "the turn's number: strictly rising"},
        fresh=flag | {"description": "whether the agent was built for this message"},
        forwarded=flag | {"description": "whether another replica had the agent"},
    )
    problem = _object(
        "type title status detail code",
        type=_TEXT,
        title=_TEXT,
        status=whole,
        detail=_TEXT,
        code=_TEXT | {"enum": list(KINDS)},
        why=_TEXT | {"description": "busy: turn, queue, closing, grace; line-full: full"},
        holder=_TEXT | {"description": "busy: the worker that has the session"},
        running=number | {"description": "busy: seconds since its turn began"},
        ahead=whole | {"description": "busy: how many wait in line before"},
        retry_after=whole | {"description": "seconds to wait before asking again: the header of that name"},
    )
    ready = _object("ready worker why", ready=flag, worker=_TEXT, why=_TEXT)
    reset = _object("session evicted", session=_TEXT, evicted=flag)
    return {"Message": message, "Answer": answer, "Problem": problem, "Ready": ready, "Reset": reset}


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1c2b23}"
    "h1{font-size:1.6rem}h2{font-size:1.1rem;margin-top:2rem}code,pre{font:14px/1.5 ui-monospace,monospace}"
    "pre{background:#f2f6f3;padding:.8rem;overflow:auto;border-radius:6px}td,th{text-align:left;padding:.25rem .8rem "
    ".25rem 0;vertical-align:top}"
    "b{background:#1f6f4a;color:#fff;padding:.1rem .45rem;border-radius:4px;font-size:.8rem}"
)


def page() -> str:
    """The document for people, as one page of HTML."""
    doc, parts = document(), []
    for path, methods in doc["paths"].items():
        for method, what in methods.items():
            about = html.escape(what.get("description", "")).replace("`", "")
            parts.append(f"<h2><b>{method.upper()}</b> <code>{html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(what['summary'])}. {about}</p>")
            rows = [
                f"<tr><td>{status}</td><td>{html.escape(said['description']).replace('`', '')}</td></tr>"
                for status, said in sorted(what["responses"].items())
            ]
            parts.append(f"<table><tr><th>answer</th><th>means</th></tr>{''.join(rows)}</table>")
    for name, schema in doc["components"]["schemas"].items():
        shown = html.escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(f"<h2>{name}</h2><pre>{shown}</pre>")
    kinds = "".join(
        f'<tr id="{kind}"><td><code>{kind}</code></td><td>{status}</td><td>{html.escape(about)}</td></tr>'
        for kind, (status, about) in KINDS.items()
    )
    parts.append(f"<h2>Problems</h2><table><tr><th>code</th><th>status</th><th>means</th></tr>{kinds}</table>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_TITLE}</title><style>{_STYLE}</style>'
        f'<h1>{_TITLE}</h1><p>{_ABOUT} The document itself: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{''.join(parts)}</html>"
    )
