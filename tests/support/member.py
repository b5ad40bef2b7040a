"""One worker of a fleet in a process of its own: `python -m support.member`. Told what to do by lines of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from coordinator import Limits
from support.fleet import LocalPlay, LocalSeat, LogTap


class Member:
    """Holds one seat at a time, and its open turns."""

    def __init__(self) -> None:
        self.seat: Any = None
        self.plays: dict[int, LocalPlay] = {}
        self.tap = LogTap()
        self.tap.attach()

    async def start(self, kind: str, source: str, room: str, limits: dict[str, Any], **settings: Any) -> str:
        self.plays.clear()
        self.tap.messages.clear()
        self.seat = LocalSeat(kind, source, room, limits=Limits(**limits), **settings)
        await self.seat.start()
        return str(self.seat.id)

    async def open(self, session: str, config: Any, options: dict[str, Any]) -> dict[str, Any]:
        play = await self.seat.open(session, config, **options)
        self.plays[play.fence] = play
        return {"fence": play.fence, "fresh": play.fresh, "serial": play.serial}

    async def say(self, fence: int, message: str) -> list[str]:
        return await self.plays[fence].say(message)

    async def end(self, fence: int, crashed: bool) -> None:
        await self.plays.pop(fence).end(RuntimeError("the body of the turn crashed") if crashed else None)

    async def forget(self, fence: int) -> None:
        await self.plays.pop(fence).forget()

    async def records(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in await self.seat.records()]

    async def warnings(self) -> list[str]:
        return list(self.tap.messages)

    async def do(self, method: str, *arguments: Any) -> Any:
        """Everything that a seat does without a turn."""
        return await getattr(self.seat, method)(*arguments)

    async def answer(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": request["id"]}
        try:
            reply["value"] = await getattr(self, request["do"])(*request["args"], **request["named"])
        except Exception as error:
            reply |= {"error": type(error).__name__, "text": str(error), "about": getattr(error, "__dict__", {})}
        print(json.dumps(reply), flush=True)


async def main() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(32))
    member, over, tasks = Member(), asyncio.Event(), set[asyncio.Task[None]]()

    def begin(line: str) -> None:
        task = loop.create_task(member.answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(begin, line)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()


if __name__ == "__main__":
    asyncio.run(main())
