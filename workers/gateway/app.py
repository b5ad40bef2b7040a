"""The HTTP of a replica: which address does what, and how an answer is written."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import GreenroomError
from workers.gateway.describe import document, page
from workers.gateway.exchange import Exchange
from workers.gateway.gateway import Gateway
from workers.gateway.hops import hop_of
from workers.gateway.problems import Problem, problem_of
from workers.gateway.requests import REPLAYED, message_of, target

SESSIONS = "/v1/sessions/"
#: A stream begins with its first piece, so that what goes wrong before has a status; or after so many seconds.
BEGIN_AFTER = 1.0
#: So often a stream that has nothing to say shows that it lives.
ALIVE_EVERY = 5.0
ALIVE_FOR_REPLICAS = 0.5


def application(gateway: Gateway) -> ASGIApp:
    """The ASGI application of a replica."""

    async def session(request: Request) -> Response:
        """Everything under /v1/sessions/."""
        name, turns = target(request)
        hop = hop_of(request.headers, gateway.settings.token, gateway.worker.id, gateway.worker.instance)
        match request.method, turns:
            case "POST", True:
                message = await message_of(name, request, gateway.settings)
                exchange = gateway.take(message, hop)
                return HopResponse(exchange) if hop else TurnResponse(exchange, message.streamed)
            case "DELETE", False:
                return JSONResponse({"session": name, "evicted": await gateway.reset(name)})
        raise HTTPException(405, headers={"Allow": "POST" if turns else "DELETE"})

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        why = await gateway.ready()
        return JSONResponse({"ready": not why, "worker": gateway.worker.id, "why": why}, 503 if why else 200)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(gateway.metrics())

    async def openapi(_: Request) -> Response:
        return JSONResponse(document())

    async def docs(_: Request) -> Response:
        return HTMLResponse(page())

    simple = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/openapi.json": openapi, "/docs": docs}
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
    app = Starlette(
        routes=[
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in simple.items()),
            Route(SESSIONS, session, methods=methods),
        ],
        exception_handlers={
            Problem: _problem,
            GreenroomError: _problem,
            HTTPException: _refusal,
            Exception: _problem,
        },
    )
    app.router.redirect_slashes = False

    async def replica(scope: Scope, receive: Receive, send: Send) -> None:
        """While it drains, it asks clients not to send the next request on the same connection."""

        async def parting(message: Message) -> None:
            if message["type"] == "http.response.start" and gateway.worker.draining:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        path = scope.get("path", "")
        if path.startswith(SESSIONS):  # which session is read from the bytes that were sent: see `target`
            scope = {**scope, "path": SESSIONS, "raw_path": scope.get("raw_path") or path.encode()}
        await app(scope, receive, parting)

    return replica


async def _problem(_: Request, error: Exception) -> Response:
    return problem_response(problem_of(error))


async def _refusal(_: Request, error: Exception) -> Response:
    """What Starlette itself says no to."""
    assert isinstance(error, HTTPException)
    kind = "method-not-allowed" if error.status_code == 405 else "not-found"
    detail = "this address does not know the method" if error.status_code == 405 else "there is nothing at this address"
    response = problem_response(Problem(kind, detail))
    response.headers.update(error.headers or {})
    return response


def problem_response(problem: Problem) -> Response:
    return Response(encoded(problem.body()), problem.status, problem.headers(), "application/problem+json")


def encoded(value: Any) -> bytes:
    """JSON as it goes over the wire. What an agent says may hold halves of surrogate pairs."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def event(name: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded(value))


class TurnResponse(Response):
    """The answer to one message: JSON, or events while the agent speaks. Watches for a client that goes away."""

    begin_after, alive_every = BEGIN_AFTER, ALIVE_EVERY

    def __init__(self, exchange: Exchange, streamed: bool) -> None:
        super().__init__()
        self._exchange, self._streamed = exchange, streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = asyncio.create_task(self._write(scope, receive, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({write, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._exchange.leave()
            for task in (write, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streamed:
            await self._exchange.grown(self.begin_after)
            if self._exchange.pieces or not self._exchange.problem:
                await self._stream(send)
                return
        await self._exchange.ended()
        if problem := self._exchange.problem:
            response = problem_response(problem)
        else:
            response = Response(encoded(self._exchange.answer), media_type="application/json")
            if self._exchange.replayed:
                response.headers[REPLAYED] = "true"
        await response(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        if self._exchange.replayed:
            headers.append((REPLAYED.lower().encode(), b"true"))
        headers.append((b"x-accel-buffering", b"no"))  # for balancers that would hold pieces back
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        exchange, more = self._exchange, True
        while more:
            over = exchange.over
            said = [event("piece", {"piece": piece}) for piece in exchange.take()]
            if over:
                said.append(self._last())
                more = False
            said[:0] = self._first()
            await send({"type": "http.response.body", "body": b"".join(said) or b": \n\n", "more_body": more})
            if more:
                await exchange.grown(self.alive_every)

    def _first(self) -> list[bytes]:
        """What comes before the next pieces."""
        return []

    def _last(self) -> bytes:
        if problem := self._exchange.problem:
            return event("error", problem.body())
        return event("end", self._exchange.answer)


class HopResponse(TurnResponse):
    """The answer to a message that another replica passed on: events, with what its own client need not be told."""

    begin_after = alive_every = ALIVE_FOR_REPLICAS
    _told = False

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange, streamed=True)

    def _first(self) -> list[bytes]:
        if self._told or not self._exchange.fence:
            return []
        self._told = True
        return [event("turn", {"fence": self._exchange.fence})]

    def _last(self) -> bytes:
        return event("replayed", self._exchange.answer) if self._exchange.replayed else super()._last()


async def _gone(receive: Receive) -> None:
    """Until the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
