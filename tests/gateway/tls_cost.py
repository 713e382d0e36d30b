"""New and kept connections with TLS and without: `python -m tests.gateway.tls_cost`.

The gateway's app under Granian and under uvicorn, asked in turns for /health/live, by ab over new
connections and by wrk over kept ones, which uvicorn has with HTTP/1.1 only; requests a second of
each round. The load generator shares the cores.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.engine.triton_server import wait_until
from tests.gateway.certificates import Authority
from tests.gateway.conftest import Server, Session, running_session

CLIENTS = 32
SECONDS = 2
_APP = "transformer_serving.gateway.app:app"


@contextlib.contextmanager
def servers(session: Session, authority: Authority) -> Iterator[dict[str, tuple[Server, str]]]:
    """Each with its scheme."""
    pair = authority.sign("server")
    uvicorn_tls = (f"--ssl-certfile={pair.cert}", f"--ssl-keyfile={pair.key}")
    secured = session.uvicorn(_APP)
    secured.command.extend(uvicorn_tls)
    made = {
        "gateway, TLS": (session.gateway(*pair.gateway()), "https"),
        "uvicorn, TLS": (secured, "https"),
        "gateway": (session.gateway(), "http"),
        "uvicorn": (session.uvicorn(_APP), "http"),
    }
    try:
        for server, scheme in made.values():
            server.start()
            wait_until(lambda s=server, how=scheme: answers(s, how), 120)
        yield made
    finally:
        for server, _ in made.values():
            server.stop()


def answers(server: Server, scheme: str) -> bool:
    return rate_of(server, scheme, "ab", "-q", "-n", "1") > 0


def rate_of(server: Server, scheme: str, *tool: str) -> float:
    """Requests a second, 0 where it got no answer."""
    url = f"{scheme}://127.0.0.1:{server.port}/health/live"
    done = subprocess.run([*tool, url], capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"Requests(?: per second|/sec):\s+([\d.]+)", done.stdout)
    return float(found[1]) if found and done.returncode == 0 else 0.0


TOOLS = {
    "new": ("ab", "-q", "-t", str(SECONDS), "-n", "1000000", "-c", str(CLIENTS)),
    "kept": ("wrk", "-t", "1", "-c", str(CLIENTS), "-d", f"{SECONDS}s"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: int = parser.parse_args().rounds
    found: dict[tuple[str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        running_session(Path(name)) as session,
        servers(session, Authority(Path(name))) as made,
    ):
        for _ in range(rounds):
            for title, (server, scheme) in made.items():
                for kind, tool in TOOLS.items():
                    rate = rate_of(server, scheme, *tool)
                    found.setdefault((title, kind), []).append(rate)
    for (title, kind), rates in found.items():
        low, middle, high = min(rates), statistics.median(rates), max(rates)
        sys.stdout.write(f"{title}, {kind}: {middle:,.0f} ({low:,.0f} to {high:,.0f}) a second\n")


if __name__ == "__main__":
    main()
