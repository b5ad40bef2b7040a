"""Processes for the workers of a fleet. They are kept between tests: starting Python is what takes long."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import coordinator
from coordinator import SessionBusy
from support.agents import Record
from support.fleet import CONFIG


class Process:
    """One `python -m support.member`."""

    def __init__(self) -> None:
        paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "support.member"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        self._ids = itertools.count()
        self._open: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def call(self, do: str, *args: Any, **named: Any) -> Any:
        reply: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._open[number] = reply
            assert self._popen.stdin
            self._popen.stdin.write(json.dumps({"id": number, "do": do, "args": args, "named": named}) + "\n")
            self._popen.stdin.flush()
        return await asyncio.wait_for(asyncio.wrap_future(reply), 60)

    def _read(self) -> None:
        assert self._popen.stdout
        for line in self._popen.stdout:
            message = json.loads(line)
            reply = self._open.pop(message["id"])
            if reply.cancelled():
                continue
            if "error" in message:
                reply.set_exception(_raised(message))
            else:
                reply.set_result(message["value"])
        for reply in self._open.values():
            reply.cancel() or reply.set_exception(ConnectionError("the process is gone"))

    def end(self, *, kill: bool = False) -> None:
        """With `kill` as a crash would (SIGKILL); else by closing its input, and by force if that takes too long."""
        if kill:
            self._popen.kill()
        assert self._popen.stdin
        assert self._popen.stdout
        try:
            self._popen.stdin.close()
            self._popen.wait(5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._popen.kill()
            self._popen.wait()
        self._reader.join()
        self._popen.stdout.close()


def _raised(message: dict[str, Any]) -> Exception:
    """The exception that was raised over there, if it is one of the product's."""
    if message["error"] == "SessionBusy":
        return SessionBusy(**message["about"])
    kind = getattr(coordinator, message["error"], None)
    return kind(message["text"]) if kind else RuntimeError(f"{message['error']}: {message['text']}")


class RemoteSeat:
    """A worker in a process of its own; see `LocalSeat`."""

    def __init__(self, process: Process, name: str) -> None:
        self.process, self.id, self.killed = process, name, False
        self.pid = process.pid

    async def open(self, session: str, config: Any = CONFIG, **options: Any) -> RemotePlay:
        about = await self.process.call("open", session, config, options)
        return RemotePlay(self.process, session, **about)

    async def records(self) -> list[Record]:
        return [Record(**about) for about in await self.process.call("records")]

    async def warnings(self) -> list[str]:
        return list(await self.process.call("warnings"))

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self.process.call("do", method, *arguments)

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self.killed = True
        self.process.end(kill=True)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class RemotePlay:
    """A turn in another process."""

    def __init__(self, process: Process, session: str, fence: int, fresh: bool, serial: int) -> None:
        self._process = process
        self.session, self.fence, self.fresh, self.serial = session, fence, fresh, serial

    async def say(self, message: str = "hello") -> list[str]:
        return list(await self._process.call("say", self.fence, message))

    async def end(self, error: BaseException | None = None) -> None:
        await self._process.call("end", self.fence, error is not None)

    async def forget(self) -> None:
        await self._process.call("forget", self.fence)


class Company:
    """The processes of a test run."""

    def __init__(self) -> None:
        self._free: list[Process] = []

    async def seat(self, kind: str, source: str, room: str, **settings: Any) -> RemoteSeat:
        """Start a worker in a process that has none."""
        process = self._free.pop() if self._free else await asyncio.to_thread(Process)
        settings["limits"] = asdict(settings["limits"])
        try:
            name = await process.call("start", kind, source, room, **settings)
        except BaseException:
            await asyncio.to_thread(process.end, kill=True)
            raise
        return RemoteSeat(process, name)

    def give_back(self, seat: RemoteSeat) -> None:
        """The seat was closed: its process is free for the next one."""
        if not seat.killed:
            self._free.append(seat.process)

    def close(self) -> None:
        for process in self._free:
            process.end()
