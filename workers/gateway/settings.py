"""Settings of a gateway replica: an option of `greenroom serve`, else `GREENROOM_<NAME>`, else the default."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from coordinator.settings import FromEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(FromEnvironment):
    """What a replica does beyond what its worker does, in seconds and bytes."""

    wait: float = 30.0  #: how long a message waits for a busy session
    line: int = 32  #: how many messages may wait for one session
    body_limit: int = 1 << 20  #: of a request
    body_for: float = 30.0  #: how long a client may take to send one
    reply_limit: int = 1 << 24  #: of what an agent says, in characters: it is kept until the end of its turn
    run_threads: int = 64  #: for agents whose `run` is no coroutine; a message waits for a free one
    on_disconnect: str = "finish"  #: what becomes of the turn of a client that goes away: finish, or interrupt
    drain_for: float = 300.0  #: how long a replica that is told to go waits for running turns
    affinity: bool = True  #: messages are passed on to where the warm agent is, or a cold session is to go
    hop_for: float = 5.0  #: how long a replica that a message was passed on to may be silent
    token: str = field(default="", repr=False)  #: the secret between replicas

    def __post_init__(self) -> None:
        FromEnvironment.__post_init__(self)
        if self.on_disconnect not in ("finish", "interrupt"):
            raise ValueError(f"on_disconnect is 'finish' or 'interrupt', not {ascii(self.on_disconnect)[:40]}")
        if self.hop_for < 1.0:
            raise ValueError("hop_for is 1 second or more: a replica shows twice in that time that it lives")
        if not re.fullmatch("[!-~]*", self.token):
            raise ValueError("a token is visible ASCII characters")
