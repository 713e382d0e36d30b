"""The table of loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.servers import choice
from benchmarks.servers.peers import Peer

# A measured round has so many requests of each client: of one each there is only the burst at the
# begin, and the wait of the first for the last.
LEAST_TURNS = 3


@dataclass(frozen=True)
class Load:
    """What is sent to each peer. `most` is how many requests of one measurement are sent for its
    time alone; LEAST_TURNS of each client are sent in any case.

    `tool` is ab, whose connections are new, wrk, which keeps them, open for the open loop of mixed
    lengths, or paced for one that offers `pace` requests a second. `raw` is the batch at which the
    engine alone is measured beside it, None: not at all. `tokens`: of texts that have so many, not
    the seed's.
    """

    name: str
    title: str
    tool: str
    clients: int
    texts: int
    most: int
    raw: int | None
    only: tuple[str, ...] = ()
    pace: float = 0.0
    tokens: int | None = None

    def takes(self, peer: Peer) -> bool:
        if self.only:
            return peer.name in self.only
        if peer.server is None:
            return self.raw == 1 if peer.pause_s else self.raw is not None
        return self.texts == 1 or (peer.many and self.texts <= peer.most)


SEED = Load("seed", "one text, 128 clients, new connections (ab -c 128)", "ab", 128, 1, 16000, 64)
KEPT = Load("kept", "one text, 128 clients, kept connections (wrk -c 128)", "wrk", 128, 1, 0,
            None, only=("null-gateway", "null-uvicorn"))  # fmt: skip
SINGLE = Load("single", "one text at a time, kept connection (wrk -c 1)", "wrk", 1, 1, 0, 1)
BATCH = Load("batch", "32 texts a request, 4 clients", "ab", 4, 32, 4000, 32)
MIXED = Load("mixed", "mixed lengths, open loop at 70 % of capacity", "open", 64, 1, 0, None,
             only=("gateway", "app"))  # fmt: skip
BIG = Load("big", "512 texts a request, 1 client", "ab", 1, 512, 200, 64)
# The pace at which MLServer's Hugging Face runtime was measured by its users, with vegeta.
PACED = Load("paced", "one text, 50 requests a second offered, open loop", "paced", 4, 1, 0, None,
             ("gateway", "gateway-v2", "gateway-tei", "mlserver", "mlserver-batched"),
             pace=50.0)  # fmt: skip

MAIN = (SEED, KEPT, SINGLE, BATCH, MIXED)
LOADS = {load.name: load for load in (*MAIN, BIG, PACED)}


def shares(clients: int, parts: int) -> list[int]:
    """So many clients in equal parts; those left over are one more in each of the first."""
    each, over = divmod(clients, parts)
    return [each + (number < over) for number in range(parts)]


def chosen(names: Sequence[str]) -> list[Load]:
    """The loads of these names, those of `make bench` without any. Raises Failure (2)."""
    return choice.chosen("load", names, LOADS) or list(MAIN)
