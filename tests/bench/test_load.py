"""The load generator against a real web server whose answers and stalls are known."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from tests.bench.served import served
from transformer_serving.desk.bench import load, measure
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures, percentile, shown
from transformer_serving.desk.cli import main

ROOT = Path(__file__).parent.parent.parent
STALL_S = 1.0
PAYLOAD = load.Payload("one", b'{"text": "a"}')


class Played:
    """A small ASGI app: it answers by path, and counts what it saw."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.headers: dict[bytes, bytes] = {}
        self.types: set[tuple[bytes, ...]] = set()
        self.inside = self.most_inside = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        self.bodies.append(json.loads(body))
        self.headers = dict(scope["headers"])
        self.types.add(tuple(value for name, value in scope["headers"] if name == b"content-type"))
        if scope["path"] == "/stall" and len(self.bodies) == 1:
            # Nobody is served meanwhile, as when a worker's loop is blocked.
            threading.Event().wait(STALL_S)
        if scope["path"] == "/slow":
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            await asyncio.sleep(0.05)
            self.inside -= 1
        status = 503 if scope["path"] == "/full" and len(self.bodies) % 2 == 0 else 200
        close = [(b"connection", b"close")] if scope["path"] == "/close" else []
        await send({"type": "http.response.start", "status": status, "headers": close})
        await send({"type": "http.response.body", "body": b"{}"})


@dataclass
class Server:
    app: Played
    port: int

    def address(self, path: str) -> Address:
        return Address.of(f"http://127.0.0.1:{self.port}{path}")


@pytest.fixture
def server() -> Iterator[Server]:
    app = Played()
    with served(app) as port:
        yield Server(app, port)


def test_a_closed_loop_sends_as_many_requests_as_it_says(server: Server) -> None:
    found = load.run(server.address("/"), [PAYLOAD], load.Closed(4, 60, requests=41))
    assert [exchange.status for exchange in found.exchanges] == [200] * 41
    assert server.app.bodies == [{"text": "a"}] * 41
    assert all(exchange.due <= exchange.sent <= exchange.done for exchange in found.exchanges)


def test_loads_at_the_same_time_have_runs_of_their_own(server: Server) -> None:
    other = load.Payload("other", b'{"text": "b"}')
    first, second = load.run_together(
        [
            (server.address("/slow"), [PAYLOAD], load.Closed(2, 60, requests=6)),
            (server.address("/slow"), [other], load.Closed(3, 60, requests=9)),
        ]
    )
    assert [exchange.label for exchange in first.exchanges] == ["one"] * 6
    assert [exchange.label for exchange in second.exchanges] == ["other"] * 9
    assert server.app.most_inside > 3


def test_the_clients_of_a_closed_loop_wait_at_the_same_time(server: Server) -> None:
    found = load.run(server.address("/slow"), [PAYLOAD], load.Closed(20, 60, requests=60))
    assert len(found.exchanges) == 60
    assert server.app.most_inside == 20
    # uvloop's timers are of whole milliseconds: one of 50 can be over after 49.
    assert min(exchange.done - exchange.sent for exchange in found.exchanges) > 0.045


def test_a_connection_that_the_server_closes_is_replaced(server: Server) -> None:
    for kind in (load.Closed(2, 60, requests=10), load.Open(100, 0.2)):
        found = load.run(server.address("/close"), [PAYLOAD], kind)
        assert found.exchanges
        assert {exchange.status for exchange in found.exchanges} == {200}


def test_an_open_loop_sends_what_is_due_whatever_the_answers(server: Server) -> None:
    wanted = load.Open(rate=200, seconds=1)
    found = load.run(server.address("/slow"), [PAYLOAD], wanted)
    assert len(found.exchanges) == len(load.arrivals(200, 1))
    assert {exchange.status for exchange in found.exchanges} == {200}


@pytest.mark.parametrize("rate", [0.01, 8.0], ids=["nothing due", "few due"])
def test_an_open_loop_lasts_as_long_as_it_says(server: Server, rate: float) -> None:
    """Else its rates were those of the time to its last answer."""
    found = load.run(server.address("/"), [PAYLOAD], load.Open(rate, 0.4))
    assert len(found.exchanges) == len(load.arrivals(rate, 0.4))
    # A clock that has run for a day has few digits left for what follows the point.
    assert found.elapsed_s >= 0.4 - 1e-9
    assert figures(found).goodput <= len(found.exchanges) / (0.4 - 1e-9)


def test_a_stall_counts_for_every_request_that_it_held_up(server: Server) -> None:
    """One connection only: those behind the stalled one cannot even be sent while it lasts."""
    wanted = load.Open(rate=50, seconds=1, connections=1)
    found = load.run(server.address("/stall"), [PAYLOAD], wanted)
    assert len(found.exchanges) == len(load.arrivals(50, 1))
    held = [e for e in found.exchanges if e.done - e.due > STALL_S / 2]
    waited = [e for e in found.exchanges if e.done - e.sent > STALL_S / 2]
    assert len(waited) == 1
    assert len(held) > 10


def test_an_open_loop_opens_what_it_has_files_for(server: Server) -> None:
    """More are in flight than there are files for: the soft limit is raised, and the rest waits."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (48, 160)); "
        "from transformer_serving.desk.bench import load; "
        "from transformer_serving.desk.bench.connection import Address; "
        f"address = Address.of('http://127.0.0.1:{server.port}/slow'); "
        "payloads = [load.Payload('one', b'{}')]; "
        "found = load.run(address, payloads, load.Open(4000, 0.25, connections=16_384)); "
        "print({exchange.status for exchange in found.exchanges})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "{200}", done.stderr
    # With 48 files, 7 of them its own, it could not be.
    assert 48 < server.app.most_inside < 160 - 64


def test_a_connection_that_the_server_closed_while_it_was_idle_is_not_sent_on() -> None:
    """Four tenths of a second lie between the two, and the server keeps no connection at all."""
    with served(Played(), keep_s=0) as port:
        address = Address.of(f"http://127.0.0.1:{port}/")
        found = load.run(address, [PAYLOAD], load.Open(2, 1, connections=1))
    assert [exchange.status for exchange in found.exchanges] == [200] * 2


def test_refusals_are_counted_and_are_no_answers(server: Server) -> None:
    found = figures(load.run(server.address("/full"), [PAYLOAD], load.Closed(1, 60, requests=10)))
    assert found.statuses == {"200": 5, "503": 5}
    assert found.latency is not None
    assert found.latency.count == 5


def test_the_figures_of_a_run_of_known_times() -> None:
    rows = [
        load.Exchange("long", 2, due=1.0, sent=1.5, done=2.0, status=200),
        load.Exchange("short", 1, due=2.0, sent=2.0, done=2.1, status=200),
        load.Exchange("long", 2, due=3.0, sent=3.1, done=3.4, status=200),
        load.Exchange("short", 1, due=4.0, sent=4.0, done=9.0, status=503),
        load.Exchange("short", 1, due=5.0, sent=5.0, done=9.0, status=load.NO_ANSWER),
    ]
    found = figures(load.Run(tuple(rows), elapsed_s=4.0, cpu_s=1.0))
    assert (found.requests, found.elapsed_s, found.goodput, found.texts) == (5, 4.0, 0.75, 1.25)
    assert found.statuses == {"no answer": 1, "200": 3, "503": 1}
    assert found.generator_cpu == 0.25
    assert found.late_ms == pytest.approx(500)
    times = (3, 500.0, 400.0, 1000.0, 1000.0, 1000.0, 1000.0)
    assert found.latency is not None
    assert dataclasses.astuple(found.latency) == pytest.approx(times)
    assert {label: part.p50 for label, part in found.by_label.items()} == {
        "long": pytest.approx(400),
        "short": pytest.approx(100),
    }
    # Of one kind of payload alone they are all's.
    assert figures(load.Run(tuple(rows[1:2]), elapsed_s=4.0, cpu_s=1.0)).by_label == {}


def test_a_run_without_a_request_has_figures() -> None:
    found = figures(load.Run((), elapsed_s=0.0, cpu_s=1.0))
    assert (found.goodput, found.latency, found.late_ms, found.generator_cpu) == (0, None, 0, 0)


def test_nobody_there_is_an_error_and_not_a_figure() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address.of(f"http://127.0.0.1:{free.getsockname()[1]}/")
        with pytest.raises(OSError, match=r"."):
            load.run(address, [PAYLOAD], load.Closed(1, 1))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([50.0, 90, 99, 99.9]))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= len(ordered) * share / 100
    assert sum(value < found for value in ordered) < len(ordered) * share / 100


@pytest.mark.parametrize(
    ("rate", "said"),
    [(0.0, "0"), (0.3141, "0.314"), (9.876, "9.88"), (99.96, "100"), (1136.5, "1136")],
)
def test_a_slow_rate_has_digits(rate: float, said: str) -> None:
    assert shown(rate) == said


def test_lengths_are_reported_apart(server: Server) -> None:
    mixed = measure.payloads(None, None, 2, (3, 9))
    found = figures(load.run(server.address("/"), mixed, load.Closed(2, 60, requests=20)))
    assert {label: part.count for label, part in found.by_label.items()} == {
        "3 words": 10,
        "9 words": 10,
    }
    assert found.texts > found.goodput
    assert {len(body["text"]) for body in server.app.bodies} == {2}


def run_cli(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["bench", *arguments])


def test_the_command_prints_figures_of_every_load(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}/full"
    done = run_cli(url, "-c", "1", "-c", "3", "--seconds", "0.2", "--header", "X-Key: k", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["clients"] for row in rows] == [1, 3, None]
    assert rows[2]["rate"] > 0
    assert all(row["figures"]["goodput"] > 0 for row in rows)
    assert server.app.headers[b"x-key"] == b"k"
    server.app.bodies.clear()
    printed = run_cli(url, "-c", "1", "--seconds", "0.2").output
    assert "answers other than 200" in printed
    assert "of one core" in printed


def test_a_load_without_a_request_says_so_and_not_that_the_generator_was_the_limit(
    server: Server,
) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    said = run_cli(url, "-c", "1", "--seconds", "0.2", "--rate", "0.01").output
    assert "open loop, 0.01/s: no request was due in its time; give more --seconds" in said


def test_a_time_without_any_request_is_said(server: Server) -> None:
    """Too short for a closed loop's first one, and then there is no rate for an open one."""
    done = run_cli(f"http://127.0.0.1:{server.port}/", "-c", "1", "--seconds", "1e-9")
    assert done.exit_code == 0, done.output
    assert "1 clients: no request was due in its time" in done.output


def test_a_header_of_ones_own_takes_the_place_of_the_usual_one(server: Server) -> None:
    """In any spelling; two of one name are for the server to choose among."""
    mine = ("--header", "content-type: text/plain", "--header", "content-length: 9")
    done = run_cli(f"http://127.0.0.1:{server.port}/", "-c", "1", "--seconds", "0.1", *mine)
    assert done.exit_code == 0, done.output
    assert server.app.types == {(b"text/plain",)}
    sent = Address.of("http://[::1]:8080/", {"CONTENT-TYPE": "a", "content-length": "9"}).request(
        b"{}"
    )
    head = sent.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[1:] == [b"Host: [::1]:8080", b"CONTENT-TYPE: a", b"Content-Length: 2"]


@pytest.mark.parametrize("options", [(), ("--stream",)], ids=["whole", "stream"])
def test_an_empty_text_is_sent_as_it_is(options: tuple[str, ...], server: Server) -> None:
    run_cli(
        f"http://127.0.0.1:{server.port}/", "-c", "1", "--seconds", "0.1", "--text", "", *options
    )
    assert {body["text"] for body in server.app.bodies} == {""}


@pytest.mark.parametrize("how", ["option", "variable", "header"])
def test_the_command_sends_a_key(server: Server, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how != "option":
        monkeypatch.setenv("TRANSFORMER_SERVING_KEY", "a" if how == "variable" else "b")
    given = {"option": ["--key", "a"], "variable": [], "header": ["--header", "x-api-key: a"]}
    url = f"http://127.0.0.1:{server.port}/"
    done = run_cli(url, "-c", "1", "--seconds", "0.1", *given[how])
    assert done.exit_code == 0, done.output
    assert server.app.headers[b"x-api-key"] == b"a"


def test_the_command_sends_a_file(server: Server, tmp_path: Path) -> None:
    body = tmp_path / "payload.json"
    body.write_text('{"question": "who", "context": "me"}', "utf-8")
    url = f"http://127.0.0.1:{server.port}/"
    done = run_cli(url, "-c", "1", "--seconds", "0.1", "--body", str(body), "--json")
    assert done.exit_code == 0, done.output
    assert server.app.bodies[0] == {"question": "who", "context": "me"}


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b'{"text": ["a", "b", "c"]}', 3),
        (b'{"text": "a"}', 1),
        (b'{"question": "who", "context": "me"}', 1),
        (b'{"query": "who", "texts": ["a", "b"]}', 2),
        (b'{"query": "who", "documents": ["a", {"text": "b"}]}', 2),
        (b'{"source_sentence": "a", "sentences": ["a", "b"]}', 2),
        (b'{"inputs": {"source_sentence": "a", "sentences": ["a", "b"]}}', 2),
        (b'{"inputs": {"question": "who", "context": "me"}}', 1),
        (b'{"inputs": ["a", "b", "c"]}', 3),
        (b'{"inputs": "a"}', 1),
        (b'{"model": "m", "input": ["a", "b"]}', 2),
        (b'{"model": "m", "input": [5, 6, 7]}', 1),
        (b'{"instances": [{"text": "a"}, {"text": "b"}]}', 2),
        (b'{"inputs": [{"name": "text", "data": ["a", "b"]}, {"name": "top_k", "data": [2]}]}', 2),
        (b'{"text": []}', 0),
        (b"[1, 2]", 1),
        (b"\xff no JSON", 1),
        (b'{"a":' * 100_000, 1),
    ],
)
def test_the_texts_of_a_file_are_counted(content: bytes, texts: int, tmp_path: Path) -> None:
    body = tmp_path / "payload.json"
    body.write_bytes(content)
    [sent] = measure.payloads(body, None, 1, ())
    assert (sent.label, sent.body, sent.texts) == ("payload.json", content, texts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ftp://x/",), "the URL must be like"),
        (("http://user:s3cret@127.0.0.1:9/",), "a name and a password in the URL are not sent"),
        (("http://127.0.0.1:9/",), "nothing answers at 127.0.0.1:9"),
        (("http://127.0.0.1:9/", "--body", "missing.json"), "missing.json cannot be read"),
        (("http://127.0.0.1:9/", "--header", "no colon"), "--header must be like"),
        (("http://127.0.0.1:9/", "--key", "a\r\nb"), "--key (TRANSFORMER_SERVING_KEY) has"),
        (("http://127.0.0.1:9/", "--words", "3", "--text", "a"), "--words goes without --text"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str
) -> None:
    done = run_cli(*arguments)
    assert done.exit_code in (1, 2)
    assert f"error: {said}" in done.output


REFUSED = {
    "ours": {"code": "missing_field", "message": "'query' is needed", "field": "query"},
    "openai": {"error": {"message": "'query' is needed", "type": "invalid_request_error"}},
    "tei": {"error": "'query' is needed", "error_type": "Validation"},
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_body_that_is_refused_names_the_reason_and_the_option(form: str) -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 422, "headers": []})
        body = json.dumps(REFUSED[form]).encode()
        await send({"type": "http.response.body", "body": body})

    with served(refusing) as port:
        done = run_cli(f"http://127.0.0.1:{port}/serve/a", "-c", "1", "--seconds", "0.1")
    assert done.exit_code == 1
    said = "the first request got status 422: 'query' is needed; send a body of this endpoint's "
    assert said + "with --body FILE" in done.output


def test_an_answer_without_a_reason_is_told_by_its_status() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with served(failing) as port:
        done = run_cli(f"http://127.0.0.1:{port}/serve/a", "-c", "1", "--seconds", "0.1")
    assert "status 500; the endpoint must answer before it is timed" in done.output


def test_more_requests_than_the_memory_has_room_for_are_refused() -> None:
    done = run_cli("http://127.0.0.1:9/", "--rate", "100000", "--seconds", "101")
    assert done.exit_code == 2
    assert "--rate for --seconds is at most 10000000 requests, got 10100000" in done.output


def test_an_endpoint_that_refuses_is_not_timed(server: Server) -> None:
    server.app.bodies.append({})
    done = run_cli(f"http://127.0.0.1:{server.port}/full", "--seconds", "0.1")
    assert done.exit_code == 1
    assert "status 503" in done.output
