"""Reconcile: what a worker holds against what Redis says it holds, both ways (rule 14). Finds what messages lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator import operations as ops
from coordinator.answers import Claim
from coordinator.link import run
from workers.copies import Copy

if TYPE_CHECKING:
    from workers.engine import Engine


def reconcile(engine: Engine) -> None:
    """At the start, at every (re)subscribe, on a timer, and whenever Redis did not know us."""
    claims = [_claim(engine, copy) for copy in engine.copies]
    claims += [
        Claim(turn.session, turn.fence, turn.signature, "building", turn.id, turn.fence, turn._key, False)
        for turn in engine.running.turns()
        if turn.fresh and not turn._copy
    ]
    for batch in ops.batches(claims, ops.BATCH):
        verdicts = run(ops.claim(engine.link, engine.worker, engine.lease_ms, engine.running.floor, batch))
        for claim, verdict in zip(batch, verdicts, strict=True):
            if verdict != "keep":
                _dismissed(engine, claim, verdict)
    run(_disown(engine))


def _claim(engine: Engine, copy: Copy) -> Claim:
    turn, fence, key = copy.turn or ("", copy.used, "")
    state = "unsure" if copy.unsure and not turn else "live"
    stamped = engine.is_stamped(copy)
    return Claim(copy.session, copy.generation, copy.signature, state, turn, fence, key, stamped)


def _dismissed(engine: Engine, claim: Claim, mode: str) -> None:
    """Redis does not know this copy as ours."""
    for turn in engine.running.turns():
        if turn.id == claim.turn:
            engine.running.lose(turn)
    engine.departures.discard(claim.session, claim.generation, mode, "lost")


async def _disown(engine: Engine) -> None:
    """What Redis says we hold and we do not."""
    link = engine.link
    async for names in ops.pages(link, link.keys.held(engine.worker)):
        generations = await link.read_many([("HGET", link.keys.session(name), "generation") for name in names])
        known = [(name, int(generation or 0)) for name, generation in zip(names, generations, strict=True)]
        await ops.disown(link, engine.worker, [copy for copy in known if not engine.copies.holds(*copy)])
