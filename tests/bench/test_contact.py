"""A server that goes away between two loads, and a process that may open no more connections."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.bench.served import served
from transformer_serving.desk.bench import contact, load
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.cli import main
from transformer_serving.desk.failure import Failure

ROOT = Path(__file__).parent.parent.parent
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def leaving(after: int) -> Iterator[int]:
    """The port of a server that answers on so many connections; nobody listens for the next one."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(after)
    port = listener.getsockname()[1]

    def answer(connection: socket.socket) -> None:
        with connection:
            while connection.recv(65_536):
                connection.sendall(ANSWER)

    def serve() -> None:
        answering = []
        for left in reversed(range(after)):
            connection, _ = listener.accept()
            if not left:
                # Before the last is answered: who asked would else be let in once more.
                listener.close()
            answering.append(threading.Thread(target=answer, args=(connection,)))
            answering[-1].start()
        for one in answering:
            one.join()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield port
    finally:
        thread.join()


def test_a_load_to_a_server_that_is_gone_names_it() -> None:
    payload = [load.Payload("one", b"{}")]
    with leaving(after=1) as port:
        address = Address.of(f"http://127.0.0.1:{port}/")
        found = contact.run(address, payload, load.Closed(1, 60, requests=3))
        assert [exchange.status for exchange in found.exchanges] == [200] * 3
        for kind in (load.Closed(1, 0.1), load.Open(50, 0.1)):
            with pytest.raises(Failure, match=f"nothing answers at 127.0.0.1:{port}: .*status'"):
                contact.run(address, payload, kind)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_measured_before_the_server_went_is_shown(as_json: bool) -> None:
    # One asks once, three warm up, one is the first load.
    with leaving(after=1 + 3 + 1) as port:
        url = f"http://127.0.0.1:{port}/"
        options = ["-c", "1", "-c", "3", "--seconds", "0.2", *(["--json"] if as_json else [])]
        done = CliRunner().invoke(main, ["bench", url, *options])
    assert done.exit_code == 1
    assert f"error: nothing answers at 127.0.0.1:{port}: " in done.stderr
    if as_json:
        [row] = json.loads(done.stdout)
        assert row["load"] == "1 clients"
        assert row["figures"]["statuses"].keys() == {"200"}
    else:
        # Its row in the table, and not the line that says what is measured.
        assert re.search(r"^ *1 clients +\d+ ", done.stdout, re.MULTILINE)
        assert "the generator used up to" in done.stdout


async def answering(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def test_more_clients_than_files_are_refused_with_the_way_out() -> None:
    with served(answering) as port:
        command = f"ulimit -n 60; exec {sys.executable} -m transformer_serving.desk.cli bench"
        done = subprocess.run(
            ["bash", "-c", f"{command} http://127.0.0.1:{port}/ -c 100 --seconds 0.1"],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"no more connections to 127.0.0.1:{port}: Too many open files; " in done.stderr
    assert "fewer clients, or allow more than 60 files with 'ulimit -n'" in done.stderr
    assert "Traceback" not in done.stderr
