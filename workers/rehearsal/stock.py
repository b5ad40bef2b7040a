"""What a gateway is without Greenroom: the same server stack, the same agents in a dict, no Redis and one process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from workers.gateway.addresses import listen
from workers.gateway.echo import EchoAgent, build
from workers.turns import BuildRequest

agents: dict[str, EchoAgent] = {}


async def turn(request: Request) -> Response:
    """A message for a session's agent, and its reply."""
    session = request.path_params["session"]
    body: dict[str, Any] = json.loads(await request.body())
    fresh = session not in agents
    if fresh:
        agents[session] = build(BuildRequest(session, None, "", None, 0))
    reply = "".join([piece async for piece in agents[session].run(body["message"])])
    answer = {"reply": reply, "session": session, "worker": "stock", "fence": 0, "fresh": fresh, "forwarded": False}
    return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")


def main() -> None:
    """Serve on a free port, which is printed."""
    app = Starlette(routes=[Route("/v1/sessions/{session}/turns", turn, methods=["POST"])])
    with listen("127.0.0.1", 0) as listening:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_keep_alive=75, server_header=False, lifespan="off"
        )
        print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
        asyncio.run(uvicorn.Server(config).serve([listening]))


if __name__ == "__main__":
    main()
