"""The parts of a worker by themselves: no Redis at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support import wait_until

from workers.copies import Copies, Copy
from workers.lifecycle import Lifecycle
from workers.memory import MemoryGuard, collect_and_trim, resident_bytes
from workers.releases import Releases


class TestCopies:
    def test_a_pinned_copy_comes_out_at_its_last_unpin_and_once(self) -> None:
        copies = Copies()
        copy = Copy("s", 1, "sig", object())
        copies.add(copy)
        assert copies.pin("s") is copy
        assert copies.discard("s", 1, "soft", "lru") is None
        assert copies.pin("s") is None, "a copy that must go is offered to nobody"
        assert copies.unpin(copy) is None
        assert copies.unpin(copy) is copy
        assert copies.discard("s", 1, "soft", "lru") is None
        assert len(copies) == 0

    def test_hard_beats_soft(self) -> None:
        copies = Copies()
        copy = Copy("s", 1, "sig", object())
        copies.add(copy)
        copies.discard("s", 1, "hard", "reset")
        copies.discard("s", 1, "soft", "lru")
        assert (copy.mode, copy.reason) == ("hard", "reset")

    def test_generations_are_apart(self) -> None:
        copies = Copies()
        old, new = Copy("s", 1, "sig", object()), Copy("s", 2, "sig", object())
        for copy in (old, new):
            copies.add(copy)
            copies.unpin(copy)
        assert copies.discard("s", 3, "soft", "lru") is None
        assert copies.discard("s", 1, "soft", "moved") is old
        assert copies.pin("s") is new
        assert copies.holds("s", 2)
        assert not copies.holds("s", 1)

    def test_what_redis_keeps_is_kept_whatever_was_rumoured(self) -> None:
        copies = Copies()
        for name in ("a", "b"):
            copy = Copy(name, 1, "sig", object())
            copies.add(copy)
            copies.unpin(copy)
        first = copies.pin("a")
        assert first
        copies.discard("a", 1, "soft", "lru")
        copies.touch(first, first.told)
        assert copies.unpin(first) is None
        assert [copy.session for copy in copies] == ["b", "a"]
        assert [copy.session for copy in copies.idle()] == ["b", "a"]

    def test_what_is_heard_after_redis_was_asked_counts(self) -> None:
        copies = Copies()
        copy = Copy("a", 1, "sig", object())
        copies.add(copy)
        told = copy.told
        copies.discard("a", 1, "soft", "lru")
        copies.touch(copy, told)
        assert copies.unpin(copy) is copy


class TestReleases:
    def test_never_more_than_its_threads_at_once(self) -> None:
        releases, running, most, lock = Releases(3, 60), [], [], threading.Lock()
        gate = threading.Event()

        def work() -> None:
            with lock:
                running.append(1)
                most.append(len(running))
            gate.wait(10)
            with lock:
                running.pop()

        for number in range(12):
            releases.submit(f"job {number}", work)
        wait_until(lambda: len(most) == 3)
        assert not releases.finish(0.1)
        gate.set()
        assert releases.finish(10)
        assert max(most) == 3
        assert len(most) == 12
        releases.stop()

    def test_one_that_takes_too_long_is_given_up_on_and_replaced(self, caplog: Any) -> None:
        releases, gate, done = Releases(1, 0.1), threading.Event(), []
        stuck = releases.submit("the stuck one", lambda: gate.wait(10) and None)
        releases.submit("the next", lambda: done.append(1))
        assert releases.finish(10)
        assert done == [1]
        assert isinstance(stuck.exception(), TimeoutError)
        assert releases.failed == 1
        assert "gave up on the stuck one" in caplog.text
        gate.set()
        wait_until(lambda: not releases._running)
        releases.submit("another", lambda: done.append(2))
        assert releases.finish(10)
        assert done == [1, 2]
        releases.stop()

    def test_stuck_threads_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.releases.STUCK", 2)
        releases, gate, done = Releases(2, 0.05), threading.Event(), list[int]()

        def work() -> None:
            gate.wait(10)
            done.append(1)

        before = threading.active_count()
        for number in range(10):
            releases.submit(f"job {number}", work)
        for number in range(20):
            releases.finish(0.05)
            releases.submit(f"late job {number}", work)
        assert threading.active_count() - before <= 4
        gate.set()
        wait_until(lambda: len(done) == 30, what="when the stuck ones are through, the queue is served")
        assert releases.finish(10)
        releases.stop()

    def test_what_waits_while_all_threads_are_stuck_is_given_up_on_and_done_later(
        self, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        monkeypatch.setattr("workers.releases.STUCK", 2)
        releases, gate, done = Releases(1, 0.05), threading.Event(), list[int]()
        for number in range(3):
            releases.submit(f"the stuck one {number}", lambda: gate.wait(10) and None)
            releases.finish(0.1)
        waits = releases.submit("the healthy one", lambda: done.append(1))
        assert releases.finish(10), "nobody waits for it"
        assert isinstance(waits.exception(0), TimeoutError)
        assert "gave up on the healthy one after 0.1 s; all threads are stuck" in caplog.text
        assert done == []
        gate.set()
        wait_until(lambda: done == [1], what="its turn")
        releases.stop()

    def test_one_that_raises_is_counted(self, caplog: Any) -> None:
        releases = Releases(1, 10)
        failed = releases.submit("the bad one", lambda: 1 / 0 and None)
        assert isinstance(failed.exception(10), ZeroDivisionError)
        assert releases.finish(10)
        assert releases.failed == 1
        assert "the bad one failed" in caplog.text
        releases.stop()


class TestMemoryGuard:
    def test_an_eighth_at_a_time_then_it_gives_up(self) -> None:
        guard = MemoryGuard()
        assert guard.to_shed(None, 10**12, 80) == 0
        assert guard.to_shed(100, 100, 80) == 0
        assert guard.to_shed(100, 120, 80) == 10
        assert guard.to_shed(100, 110, 70) == 8, "it helped: go on"
        assert guard.to_shed(100, 110, 62) == 7, "fruitless, once"
        assert guard.to_shed(100, 115, 55) == 0, "fruitless, twice: stop"
        assert guard.to_shed(100, 116, 55) == 0
        assert guard.to_shed(100, 130, 55) == 6, "it grew by an eighth: try again"
        assert guard.to_shed(100, 90, 49) == 0
        assert guard.to_shed(100, 120, 3) == 1
        assert guard.to_shed(100, 120, 0) == 0
        assert guard.to_shed(100, 120, 0) == 0
        assert guard.to_shed(100, 120, 16) == 2, "beats without an idle agent are no fruitless batches"

    def test_what_the_system_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert resident_bytes() > 1 << 20
        collect_and_trim()

        def missing(*_: Any, **__: Any) -> Any:
            raise FileNotFoundError

        monkeypatch.setattr("builtins.open", missing)
        assert resident_bytes() == 0
        monkeypatch.setattr("ctypes.CDLL", missing)
        collect_and_trim()


class TestLifecycle:
    def test_each_default_acts_only_on_what_is_there(self) -> None:
        lifecycle, bare = Lifecycle(), object()
        for method in (lifecycle.keep, lifecycle.release, lifecycle.close, lifecycle.interrupt):
            assert method(bare) is None
        assert lifecycle.last_activity(bare) is None
        assert lifecycle.snapshot(bare) is None
        assert lifecycle.end_session("s") is None

    def test_without_release_clients_a_soft_release_closes(self) -> None:
        class Closing:
            closed = 0

            def close(self) -> None:
                self.closed += 1

        agent = Closing()
        Lifecycle().release(agent)
        assert agent.closed == 1

    def test_a_hard_close_ends_memory_first(self) -> None:
        story: list[str] = []

        class Full:
            def __getattr__(self, name: str) -> Any:
                return lambda: story.append(name)

        Lifecycle().close(Full())
        assert story == ["shutdown_memory_provider", "close"]

    def test_a_snapshot_is_the_agent_s(self) -> None:
        class Warm:
            def snapshot(self) -> dict[str, str]:
                return {"prompt": "frozen"}

        assert Lifecycle().snapshot(Warm()) == {"prompt": "frozen"}
