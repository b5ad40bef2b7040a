"""One hop: a message is passed on to the replica that has the session's agent, or that the session is to go to.

Both ends name the delivery in the turn that they begin, and Redis gives only one of them a turn. So whoever passed a
message on and does not hear of it may always begin here: if the other one runs it, or has run it, Redis says so.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from starlette.datastructures import Headers

from coordinator.errors import SessionElsewhere
from workers.gateway.exchange import Exchange
from workers.gateway.problems import KINDS, Problem
from workers.gateway.requests import EVENTS, KEY, Message

logger = logging.getLogger("greenroom.gateway")

#: What a replica says of a message that it passes on: who to whom (the worker, and which start of it: that is known to
#: Redis only), which delivery, how many ms it may wait, and whether the turn in its way was asked to stop already.
HOP = "Greenroom-Hop"
#: The secret between replicas.
TOKEN = "Greenroom-Token"
_NAME = "([A-Za-z0-9_.:-]{1,128})"
_HOP = re.compile(f"{_NAME} {_NAME} ([0-9a-f]{{1,64}}) ([0-9a-f]{{28}}) ([0-9]{{1,9}}) ([01])")

CONNECT_FOR = 1.0
#: Shorter than a replica keeps a connection, so that none is closed under a new message.
IDLE_FOR = 30.0
#: Answers of the other replica that are the message's. After any other the message is begun here.
FINAL = (
    "busy", "answered", "key-reused", "line-full", "interrupted", "agent-failed", "build-failed", "turn-lost",
)  # fmt: skip
#: Answers after which the other replica is asked again at the next message. Any other is a fault.
NOT_AT_HOME = ("misdirected", "draining")


@dataclass(frozen=True, slots=True)
class Hop:
    """A message's way from one replica to another."""

    sender: str
    receiver: str
    instance: str
    delivery: str
    wait: float  #: seconds
    interrupted: bool

    def header(self) -> str:
        wait, interrupted = math.ceil(self.wait * 1000), int(self.interrupted)
        return f"{self.sender} {self.receiver} {self.instance} {self.delivery} {wait} {interrupted}"


@dataclass(frozen=True, slots=True)
class Untaken:
    """The other replica gave no answer that is the message's."""

    never_ran: bool  #: nothing of it ran there: it said so


def hop_of(headers: Headers, token: str, worker: str, instance: str) -> Hop | None:
    """Whether another replica passes this request on. A Problem if only somebody says so, or if it is not for us."""
    hops, tokens = headers.getlist(HOP), headers.getlist(TOKEN)
    if not hops and not tokens:
        return None
    if not hmac.compare_digest(token.encode(), ",".join(tokens).encode()):
        raise Problem("forbidden", f"{HOP} and {TOKEN} are for replicas that share a GREENROOM_TOKEN")
    found = _HOP.fullmatch(",".join(hops))
    if not found:
        raise Problem("invalid-request", f"{HOP} is one header: from, to, its instance, delivery, ms and 0 or 1")
    hop = Hop(found[1], found[2], found[3], found[4], int(found[5]) / 1000, found[6] == "1")
    if hop.receiver != worker:
        raise Problem("misdirected", f"this is {worker}, not {hop.receiver}: check what is advertised")
    if not hmac.compare_digest(hop.instance, instance):
        raise Problem("misdirected", f"this is another {worker} than the one that is meant")
    return hop


class Neighbours:
    """The way to the other replicas."""

    def __init__(self, worker: str, token: str, silence: float) -> None:
        self._worker, self._silence = worker, silence
        self._headers = {TOKEN: token} if token else {}
        self._avoided: dict[str, float] = {}  # workers that could not be reached: until when they are left alone
        self._client = httpx.AsyncClient(
            headers={"Accept": EVENTS, "Accept-Encoding": "identity", "Content-Type": "application/json"},
            timeout=httpx.Timeout(silence, connect=min(CONNECT_FOR, silence), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_FOR),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    def avoided(self) -> list[str]:
        """Workers that could not be reached a moment ago."""
        now = time.monotonic()
        return [worker for worker, until in self._avoided.items() if until > now]

    def reachable(self, elsewhere: SessionElsewhere) -> bool:
        """Whether it makes sense to pass a message on to there."""
        if elsewhere.worker in self.avoided():
            return False
        return elsewhere.address.startswith(("http://", "https://"))

    async def forward(
        self,
        message: Message,
        to: SessionElsewhere,
        delivery: str,
        wait: float,
        exchange: Exchange,
        began: Callable[[int], object],
    ) -> dict[str, Any] | Untaken:
        """The answer that a turn there gives, its pieces said as they come; Untaken if nothing final was heard. A
        Problem that is the message's is raised. `began` is told the turn's fence."""
        hop = Hop(self._worker, to.worker, to.instance, delivery, wait, exchange.interrupted)
        headers = self._headers | {HOP: hop.header()} | ({KEY: message.key} if message.key else {})
        url = f"{to.address.rstrip('/')}/v1/sessions/{quote(message.session, safe='')}/turns"
        last: tuple[str, Any] = ("", None)
        ran = False
        try:
            async with self._client.stream("POST", url, content=message.body, headers=headers) as response:
                # It was asked to begin a turn, and did what `on_busy` says.
                exchange.interrupted |= message.on_busy == "interrupt" and response.status_code != 421
                if response.status_code != 200:
                    await response.aread()
                    last = ("error", response.json())
                async with aclosing(_events(response)) as events:
                    async for name, value in events:  # to the end, so that the connection can be used again
                        if name == "turn":
                            ran = True
                            began(value["fence"])
                        elif name == "piece":
                            exchange.say(value["piece"])
                        else:
                            last = (name, value)
            why = "the answer is none of a replica's" if last[0] else "the answer has no end"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            why = str(error) or type(error).__name__
        name, value = last
        if name == "error" and (problem := _problem(value)):
            if problem.kind in FINAL:
                raise problem
            if problem.kind in NOT_AT_HOME:
                logger.info("%s does not take a message: %s", to.worker, problem)
                return Untaken(never_ran=not ran)
            why = str(problem)
        elif name in ("end", "replayed") and isinstance(value, dict):
            exchange.replayed = name == "replayed"
            return value
        self._avoid(to.worker, why)
        return Untaken(never_ran=False)

    def _avoid(self, worker: str, why: str) -> None:
        """Its sessions move here when messages come for them."""
        self._avoided = {name: self._avoided[name] for name in self.avoided()}
        self._avoided[worker] = time.monotonic() + self._silence
        logger.warning("%s is left alone for %g s, its sessions move: %s", worker, self._silence, why)


async def _events(response: httpx.Response) -> AsyncGenerator[tuple[str, Any], None]:
    """Names and values of the events that a replica writes. (Lines of httpx end at U+2028, which JSON may hold.)"""
    rest, seen = bytearray(), 0
    async for data in response.aiter_bytes():
        rest += data
        while (end := rest.find(b"\n\n", max(0, seen - 1))) >= 0:
            name, _, value = bytes(rest[:end]).partition(b"\n")
            del rest[: end + 2]
            seen = 0
            if name.startswith(b"event: "):
                yield name[7:].decode(), json.loads(value.removeprefix(b"data: "))
        seen = len(rest)


def _problem(body: Any) -> Problem | None:
    """A problem as another replica writes it."""
    if not isinstance(body, dict) or body.get("code") not in KINDS:
        return None
    more = {name: value for name, value in body.items() if name not in Problem.STANDARD}
    return Problem(body["code"], str(body.get("detail")), retry_after=body.get("retry_after", 0), **more)
