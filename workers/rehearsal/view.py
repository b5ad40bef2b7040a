"""What the demo shows: a room at work, and the summary. Pure: frames and numbers in, rich's renderables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.cli.output import clock, shown
from coordinator.room import Event
from workers.rehearsal.verdict import Check

#: Lines of the live view beside the workers' and the journal's.
_FIXED = 10
#: The widest meter of a worker.
_METER = 48
_STYLES = {"built": "green", "moved": "cyan", "evicted": "yellow", "lost": "red", "over-cap": "magenta", "gone": "red"}


@dataclass(frozen=True, slots=True)
class Shelf:
    """One worker at a moment."""

    worker: str
    state: str  #: up, draining, gone
    held: int
    mid_turn: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A moment of the demo, as Redis knows the room."""

    title: str
    elapsed: float
    seconds: float
    cap: int
    room_cap: int
    workers: Sequence[Shelf] = ()
    held: int = 0
    rate: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    events: Sequence[Event] = ()

    @property
    def turns(self) -> int:
        return self.counters.get("hits", 0) + self.counters.get("builds", 0)

    @property
    def hit_rate(self) -> float:
        return self.counters.get("hits", 0) / self.turns if self.turns else 0.0

    def evictions(self) -> list[tuple[str, int]]:
        """By reason, always in the same order: a view that hops is hard to read."""
        found = {name[10:]: count for name, count in self.counters.items() if name.startswith("evictions:")}
        usual = dict.fromkeys(("lru", "idle", "moved", "signature", "fallback", "reset"), 0)
        return list((usual | found).items())


def line(frame: Frame) -> str:
    """A moment in one line, where there is no terminal."""
    return (
        f"{frame.elapsed:5.1f} s  {frame.turns:6,} turns  {frame.rate:4.0f}/s  hits {frame.hit_rate:4.0%}"
        f"  held {frame.held}/{frame.room_cap}  evicted {sum(count for _, count in frame.evictions())}"
    )


def render(frame: Frame, width: int, height: int) -> RenderableType:
    """The live view; always as high, so that nothing moves that did not change."""
    journal_lines = max(0, min(10, height - 2 - _FIXED - len(frame.workers)))
    parts: list[RenderableType] = [
        Text(frame.title, style="bold", no_wrap=True, overflow="ellipsis"),
        _progress(frame, width),
        Text(),
        _shelves(frame, width),
        Text(),
        _numbers(frame),
        Text(),
        Text("journal", style="bold"),
        *_journal(frame, journal_lines),
    ]
    return Group(*parts)


def _progress(frame: Frame, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    done = min(frame.elapsed, frame.seconds)
    bar = ProgressBar(total=frame.seconds, completed=done, width=max(10, min(width, 100) - 12))
    grid.add_row(bar, Text(f"{done:3.0f} of {frame.seconds:.0f} s"))
    return grid


def _shelves(frame: Frame, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right")
    grid.add_column(no_wrap=True)
    legend = Text().append("●", "bold green").append(" mid-turn  ").append("○", "cyan").append(" idle  ")
    legend.append("·", "dim").append(" free")
    grid.add_row(Text("worker", style="bold"), Text("held", style="bold"), legend)
    room = max(4, min(_METER, width - 30))
    for one in frame.workers:
        style = "" if one.state == "up" else "red"
        held = f"{one.held}/{frame.cap}" if one.state != "gone" else "gone"
        grid.add_row(Text(one.worker, style=style), Text(held, style=style), _meter(one, frame.cap, room))
    grid.add_row(Text("room", style="dim"), Text(f"{frame.held}/{frame.room_cap}", style="dim"), Text())
    return grid


def _meter(one: Shelf, cap: int, room: int) -> Text:
    """A dot for each agent, or for each few where there are many."""
    per = max(1, -(-cap // room))
    lit = -(-one.mid_turn // per)
    idle = max(0, -(-one.held // per) - lit)
    meter = Text().append("●" * min(lit, room), "bold green").append("○" * min(idle, room - lit), "cyan")
    return meter.append("·" * max(0, -(-cap // per) - lit - idle), "dim")


def _numbers(frame: Frame) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    counters = frame.counters
    rate = f"{frame.turns:,}   {frame.rate:.0f}/s   hits {frame.hit_rate:.0%}"
    more = f"   moves {counters.get('moves', 0)}   over cap {counters.get('over_cap', 0)}"
    grid.add_row("turns", rate + more)
    grid.add_row("evicted", _listed(frame.evictions()))
    return grid


def _journal(frame: Frame, lines: int) -> list[Text]:
    shown_events = list(frame.events)[-lines:] if lines else []
    found = [_event(event) for event in shown_events]
    return found + [Text() for _ in range(lines - len(found))]


def _event(event: Event) -> Text:
    about, what = event.fields, Text(no_wrap=True, overflow="ellipsis")
    what.append(clock(event.at), "dim").append("  ")
    what.append(f"{shown(event.event):<9}", _STYLES.get(event.event, "")).append("  ")
    match event.event:
        case "over-cap":
            said = f"{about.get('index', '')} by {about.get('over', '')}: every candidate is mid-turn"
        case "built" | "moved":
            where = "on" if event.event == "built" else "away from"
            said = f"{about.get('session', ''):<14}  {where} {about.get('worker', '')}"
        case _:
            hard = ", hard" if about.get("mode") == "hard" else ""
            why = f"{about['reason']}{hard}, " if "reason" in about else ""
            said = f"{about.get('session', ''):<14}  {why}on {about.get('worker', '')}"
    return what.append(shown(said))


def render_summary(title: str, numbers: Mapping[str, Any], seconds: float, checks: Sequence[Check]) -> RenderableType:
    """What happened, how quick it was, and whether everything promised was kept."""
    counts = Table.grid(padding=(0, 2, 0, 0))
    counts.add_column(style="bold", no_wrap=True)
    counts.add_column()
    rate = f"{numbers['turns'] / seconds:.0f}/s" if seconds else "–"
    counts.add_row("turns", f"{numbers['turns']:,} in {seconds:.1f} s, {rate}; {numbers['waits']} waited in line")
    counts.add_row("hits", f"{numbers['hits']:,}, {numbers['hit_rate'] or 0:.1%}; {numbers['builds']:,} builds")
    evicted, agents = dict(numbers["evictions"]), numbers["agents"]
    leaving = evicted.pop("drain", 0)
    counts.add_row("evicted", _listed(list(evicted.items())))
    counts.add_row("over cap", f"{numbers['over_cap']} times, while every candidate was mid-turn")
    counts.add_row(
        "agents", f"{agents['created']:,} created, {agents['released']:,} released; {leaving} of them on leaving"
    )
    if numbers["lost"]:
        counts.add_row("lost", f"{numbers['lost']} turns lost their lease and were refused")
    verdicts = Table.grid(padding=(0, 2, 0, 0))
    for one in checks:
        mark = Text("✓", style="green") if one.ok else Text("✗", style="bold red")
        verdicts.add_row(mark, Text(one.promise, style="" if one.ok else "bold red"))
        if not one.ok:
            more = f" (and {len(one.problems) - 1} more)" if len(one.problems) > 1 else ""
            verdicts.add_row("", Text(shown(one.problems[0]) + more, style="red"))
    heading = Text(title, style="bold")
    return Group(heading, Text(), counts, Text(), _latencies(numbers["latency_ms"]), Text(), verdicts)


def _latencies(spans: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for title in ("count", "p50", "p99"):
        table.add_column(title, justify="right", no_wrap=True)
    names = {
        "begin_hit": "begin, warm agent",
        "begin_build": "begin, with its build",
        "begin_build_overhead": "  … without the builder's time",
        "begin_waited": "begin, after waiting in line",
        "end": "end",
    }
    for name, title in names.items():
        span = spans[name]
        cells = ["–" if span[part] is None else f"{span[part]:.1f} ms" for part in ("p50", "p99")]
        table.add_row(title, f"{span['count']:,}", *cells)
    return table


def _listed(items: Sequence[tuple[str, int]]) -> str:
    return "  ".join(f"{shown(name)} {count}" for name, count in items) or "nothing"
