"""`bench --for-scaling` against the real gateway, whose figures it reads."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tests.gateway.conftest import JSON, Server
from transformer_serving.desk.cli import main


def test_bench_counts_the_tokens_that_the_gateway_answered(text_gateway: Server) -> None:
    url = f"http://127.0.0.1:{text_gateway.port}/serve/texts"
    options = ["--for-scaling", "--within", "5", "-c", "4", "--seconds", "1", "--json"]
    done = CliRunner().invoke(main, ["bench", url, "--text", "tea and cups", *options])
    assert done.exit_code == 0, done.output
    advice = json.loads(done.stdout)[-1]
    body = json.dumps({"inputs": "tea and cups"})
    told = text_gateway.ask("POST", "/tei/texts/tokenize", body, JSON)
    assert told.status == 200, told
    assert advice["tokens_per_answer"] == len(told.json[0])
    assert advice["waiting_tokens"] == max(1, round(5 * advice["tokens_per_second"]))
