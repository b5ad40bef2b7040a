"""A chat gateway in forty lines. Start it in three terminals on one Redis; type `session message` into any of them.

GREENROOM_REDIS_URL=redis://localhost:6379 python examples/gateway.py
"""

from __future__ import annotations

import sys
import time
from typing import Any

from coordinator import GreenroomError, Limits
from workers import Worker


class Agent:
    """Stands for the heavy thing: a frozen system prompt, an LLM client, a history."""

    def __init__(self, request: Any) -> None:
        kept = request.snapshot or {}  # of this chat's last agent, wherever that was
        # Frozen, also when the chat moves: the provider caches it.
        self.prompt = kept.get("prompt") or f"You are a helpful assistant. Today is {time.ctime()}."
        self.history: list[str] = kept.get("history", [])  # a long one belongs into a store: see transcript.py
        self._last_activity_ts = time.time()

    def run(self, message: str) -> str:
        self.history.append(message)
        self._last_activity_ts = time.time()
        return f"{len(self.history)} messages so far; my prompt says: {self.prompt!r}"

    def snapshot(self) -> dict[str, Any]:
        """What makes the chat's next agent as warm as this one."""
        return {"prompt": self.prompt, "history": self.history}

    def release_clients(self) -> None:
        """Softly: the session may go on, here or elsewhere."""


def main() -> None:
    limits = Limits(room=512, worker=128, idle_ttl=3600, memory="4GiB")
    with Worker(Agent, limits=limits) as worker:
        print(f"{worker.id} is up: type `session message`, end with Ctrl-D")
        for line in sys.stdin:
            session, _, message = line.strip().partition(" ")
            if not session:
                continue
            try:
                with worker.turn(session, {"model": "example-1"}, wait=10.0) as turn:
                    state = "built here for this turn" if turn.fresh else "warm"
                    print(f"[{session}, {state}, fence {turn.fence}] {turn.agent.run(message)}")
            except GreenroomError as error:  # busy, lost, draining, no Redis: each says what it is
                print(error)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, GreenroomError) as error:
        sys.exit(str(error))
