"""`bench --for-scaling` against the real gateway, whose figures it reads."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tests.gateway.text_serving import TextServing, text_serving as text_serving
from transformer_serving.desk.cli import main


def test_bench_counts_the_tokens_that_the_gateway_answered(text_serving: TextServing) -> None:
    server = text_serving.gateway().start()
    try:
        server.wait_for("/health/ready")
        url = f"http://127.0.0.1:{server.port}/serve/texts"
        options = ["--for-scaling", "--within", "5", "-c", "4", "--seconds", "1", "--json"]
        done = CliRunner().invoke(main, ["bench", url, "--text", "tea and cups", *options])
        assert done.exit_code == 0, done.output
        advice = json.loads(done.stdout)[-1]
        body = json.dumps({"inputs": "tea and cups"})
        told = server.ask("POST", "/tei/texts/tokenize", body, {"content-type": "application/json"})
        assert told.status == 200, told
        assert advice["tokens_per_answer"] == len(told.json[0])
        assert advice["waiting_tokens"] == max(1, round(5 * advice["tokens_per_second"]))
    finally:
        server.stop()
