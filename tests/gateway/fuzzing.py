"""Hostile requests by the seed: `python -m tests.gateway.fuzzing --requests 100000 --seed 1`.

Random bytes, JSON of every shape, gzip whole and broken and bombs, deep nesting, cases made from
/openapi.json by schemathesis, callers that stop in the middle or close their half. Every worker
must live on, with bounded memory, and answer the next good request.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import orjson
import psutil
import schemathesis
from hypothesis import HealthCheck

from tests.gateway.conftest import Server
from tests.gateway.kept_connections import KeptConnections
from tests.gateway.text_serving import TextServing, text_serving_alone

CALLERS = 24
CHECK_EVERY = 2000
GROWTH_MIB = 200
STATUSES = {200, 307, 400, 404, 405, 413, 422, 424, 429, 431, 503, 504}
# Endpoints whose own code or engine is at fault, which is answered with 500 or 502.
AT_FAULT = ("/serve/faulty", "/serve/panicking", "/serve/narrow")
ENDPOINTS = ("texts", "vectors", "holdings", "missing", "nothing", "texts/1", "")
KEYS = ("text", "text_pair", "inputs", "parameters", "timeout_ms", "truncate", "top_k", "x", "")
GOOD = {"text": ["a kettle of tea", "rain on the roof"]}
_ANSWER_S = 120


@dataclass(frozen=True)
class Sent:
    """The bytes of one request; `ends` how its caller ends: 'reads', 'leaves' or 'half-closes'."""

    raw: bytes
    ends: str = "reads"


@dataclass
class Fuzz:
    """Everything that is sent comes from the seed."""

    seed: int
    openapi: dict[str, Any]
    cases: int
    statuses: Counter[int | str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.bomb = bomb(30)
        self.openapi_cases = openapi_cases(self.openapi, self.seed, self.cases)

    def requests(self, count: int) -> Iterator[Sent]:
        kinds: dict[Callable[[], Sent], int] = {
            self.random_bytes: 35, self.some_json: 35, self.zipped: 12, self.deep: 4,
            self.from_openapi: 10, self.cut_short: 3, self.no_http: 1,
        }  # fmt: skip
        for make in self.chance.choices(list(kinds), list(kinds.values()), k=count):
            yield make()

    def random_bytes(self) -> Sent:
        alphabet = self.chance.choice([bytes(range(256)), b'{}[]":,0e-\\u', b' {"text":1}'])
        size = self.chance.choice([0, 1, 5, 60, 2000])
        return self._post(bytes(self.chance.choices(alphabet, k=size)))

    def some_json(self) -> Sent:
        names = self.chance.sample(KEYS, self.chance.randint(0, 4))
        body: Any = {name: self._value(3) for name in names}
        if self.chance.random() < 0.4:
            body["text"] = self._text()
        if self.chance.random() < 0.05:
            body = self._value(3)
        return self._post(orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS))

    def zipped(self) -> Sent:
        packed = gzip.compress(orjson.dumps({"text": self._text()}))
        kind = self.chance.random()
        if kind < 0.1:
            packed = self.bomb
        elif kind < 0.5:
            at = self.chance.randrange(len(packed))
            packed = packed[:at] + bytes([self.chance.randrange(256)]) * self.chance.randint(0, 3)
        return self._post(packed, b"content-encoding: gzip\r\n")

    def deep(self) -> Sent:
        levels = self.chance.choice([10, 900, 1100, 1100, 5000, 5000, 50_000])
        opening, closing = self.chance.choice([(b"[", b"]"), (b'{"text":', b"}")])
        return self._post(opening * levels + b"1" + closing * levels)

    def from_openapi(self) -> Sent:
        return Sent(self.chance.choice(self.openapi_cases))

    def cut_short(self) -> Sent:
        whole = self.some_json().raw
        cut = whole[: self.chance.randrange(1, max(2, len(whole) - 1))]
        return Sent(cut, self.chance.choice(["leaves", "half-closes"]))

    def no_http(self) -> Sent:
        raw = bytes(self.chance.choices(range(256), k=self.chance.randint(1, 300)))
        return Sent(raw + b"\r\n\r\n", "half-closes")

    def _post(self, body: bytes, more: bytes = b"") -> Sent:
        path = self.chance.choice(ENDPOINTS[:2] if self.chance.random() < 0.8 else ENDPOINTS)
        kind = "application/json" if self.chance.random() < 0.85 else "text/plain"
        return Sent(
            f"POST /serve/{path} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\n".encode()
            + more + b"content-length: %d\r\n\r\n" % len(body) + body
        )  # fmt: skip

    def _text(self) -> str:
        characters = self.chance.choice(
            ["tea and cups ", "äöü漢字🙂\x00\t", "".join(map(chr, range(32, 400)))]
        )
        text = "".join(self.chance.choices(characters, k=self.chance.choice([1, 9, 90, 3000])))
        # Special tokens of the model are markers for its faults.
        return text.replace("[", "(")

    def _value(self, depth: int) -> Any:
        kind = self.chance.randrange(9 if depth else 7)
        plain = (None, True, 0, -1.5e300, 2**63 - 1, "", self._text() if kind == 6 else "a")
        if kind < 7:
            return plain[kind]
        size = self.chance.choice([0, 1, 3, 120 if depth == 1 else 4])
        if kind == 7:
            return [self._value(depth - 1) for _ in range(size)]
        return {str(at): self._value(depth - 1) for at in range(min(size, 5))}


def openapi_cases(
    openapi: dict[str, Any], seed: int, count: int, endpoint: str = "texts"
) -> list[bytes]:
    """Whole requests for every operation of the app, half of them to an endpoint that is there."""
    schema = schemathesis.openapi.from_dict(openapi)
    found: list[bytes] = []
    given: list[Any] = list(schema.get_all_operations())
    made = [one.ok() for one in given if not one.ok().path.startswith(AT_FAULT)]
    for operation in made:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=max(1, count // len(made)), database=None, deadline=None,
            suppress_health_check=list(HealthCheck), phases=[hypothesis.Phase.generate],
        )  # fmt: skip
        @hypothesis.given(operation.as_strategy())
        def collect(case: Any) -> None:
            for name in ("model_id", "name"):
                if len(found) % 2 and name in (case.path_parameters or {}):
                    case.path_parameters[name] = endpoint
            found.append(_raw(case))

        collect()
    return found


def _raw(case: Any) -> bytes:
    import requests

    made = requests.Request(**case.as_transport_kwargs(base_url="http://a")).prepare()
    sent: Any = made.body or b""
    body: bytes = sent.encode() if isinstance(sent, str) else sent
    lines = [f"{made.method} {made.path_url} HTTP/1.1", "host: a", f"content-length: {len(body)}"]
    if "content-type" in made.headers:
        kind = made.headers["content-type"]
        lines.append(f"content-type: {kind.decode() if isinstance(kind, bytes) else kind}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def bomb(megabytes: int) -> bytes:
    deflater = zlib.compressobj(9, wbits=31)
    return b"".join(deflater.compress(bytes(10**6)) for _ in range(megabytes)) + deflater.flush()


async def send(port: int, sent: Sent) -> int | str:
    """The status, or 'closed' where the server closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(sent.raw)
        if sent.ends == "leaves":
            return "left"
        if sent.ends == "half-closes":
            writer.write_eof()
        async with asyncio.timeout(_ANSWER_S):
            line = await reader.readline()
        return int(line.split()[1]) if line else "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()


async def attack(server: Server, fuzz: Fuzz, count: int) -> None:
    """Send, and look after every few thousand whether the workers are well."""
    workers = workers_of(server)
    resting = [await slow(server.port, number) for number in range(40)]
    before = sum(map(memory, workers))
    left = fuzz.requests(count)
    for start in range(0, count, CHECK_EVERY):
        part = iter(
            [one for one, _ in zip(left, range(min(CHECK_EVERY, count - start)), strict=False)]
        )

        async def caller(part: Iterator[Sent] = part) -> None:
            for sent in part:
                status = await send(server.port, sent)
                assert not isinstance(status, int) or status in STATUSES, (status, sent.raw[:300])
                fuzz.statuses[status] += 1

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        await well(server.port)
        assert workers_of(server) == workers, server.log.read_text()[-3000:]
        grown = sum(map(memory, workers)) - before
        assert grown < GROWTH_MIB * len(workers), f"{grown:.0f} MiB more"
        print(f"{start + CHECK_EVERY} requests, {grown:+.0f} MiB", flush=True)  # noqa: T201
    for writer in resting:
        writer.close()


async def slow(port: int, number: int) -> asyncio.StreamWriter:
    """A caller that begins a request and goes quiet."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    whole = b"POST /serve/texts HTTP/1.1\r\nhost: a\r\ncontent-length: 90\r\n\r\n{"
    writer.write(whole[: 1 + number * 2])
    return writer


async def well(port: int) -> None:
    """A good request is answered on each of many connections, so by every worker."""
    for _ in range(8):
        connections = KeptConnections(port)
        status, answer = await connections.post("texts", GOOD)
        assert (status, len(answer)) == (200, 2)
        await connections.close()


def workers_of(server: Server) -> list[psutil.Process]:
    """The processes that serve, which are the server's own where it has no children."""
    return server.workers() or [psutil.Process(server.process.pid)]


def memory(process: psutil.Process) -> float:
    return process.memory_info().rss / 2**20


def run(text_serving: TextServing, seed: int, count: int) -> Counter[int | str]:
    print(f"seed {seed}")  # noqa: T201
    server = text_serving.gateway("--workers=2", TRANSFORMER_SERVING_MAX_BODY_BYTES="2000000")
    server.start().wait_for("/health/ready")
    try:
        asyncio.run(well(server.port))
        fuzz = Fuzz(seed, server.ask("GET", "/openapi.json").json, cases=max(30, count // 100))
        asyncio.run(attack(server, fuzz, count))
        return fuzz.statuses
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    with text_serving_alone() as serving:
        statuses = run(serving, options.seed, options.requests)
    sys.stdout.write(f"{dict(statuses)}\n")


if __name__ == "__main__":
    main()
