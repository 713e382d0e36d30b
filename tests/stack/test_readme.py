"""The commands of README and of the first pages, as they stand; only the port is the stack's."""

from __future__ import annotations

import json
import re
import subprocess

from tests.stack.conftest import ROOT, Stack

README = (ROOT / "README.md").read_text("utf-8")
# In the order in which a new user meets them.
PAGES = [
    README,
    *((ROOT / "docs" / name).read_text("utf-8") for name in ("start.md", "by-hand.md")),
]
RUN = re.compile(r"<!-- run -->\n```bash\n(.*?)```", re.DOTALL)
ANSWER = re.compile(r"<!-- answer -->\n```json\n(.*?)```", re.DOTALL)

WAIT = """for NAME in by_hand stock_style; do for TRY in $(seq 180); do
    curl -sf -o /dev/null -X POST "http://127.0.0.1:8080/serve/$NAME" \\
        -H 'Content-Type: application/json' -d '{"text": "ready"}' && break
    sleep 1
done; done
"""


def run_all(stack: Stack) -> str:
    """All blocks in one shell, in order: a later one may use what an earlier one set."""
    blocks = "\n".join(block for page in PAGES for block in RUN.findall(page))
    # A reader's patience is not a test's: it asks until both models are loaded.
    assert blocks.count("sleep 15\n") == 1
    blocks = blocks.replace("sleep 15\n", WAIT)
    script = blocks.replace("127.0.0.1:8080", f"127.0.0.1:{stack.base}")
    environment = {**stack.environment(), "TRANSFORMER_SERVING_STATE": str(stack.state)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_blocks_run_and_answer_as_they_say(stack: Stack) -> None:
    output = run_all(stack)
    # Shown where one of the answers is another one.
    print(output)  # noqa: T201
    decoder = json.JSONDecoder()
    answers = []
    for start in (match.start() for match in re.finditer(r"[\[{](?=[\"{])", output)):
        value, _ = decoder.raw_decode(output[start:])
        answers.append(value)
    first = json.loads(ANSWER.findall(README)[0])
    assert answers[0]["label"] == first["label"]
    assert abs(answers[0]["score"] - first["score"]) < 0.05
    # A newer service would take every later command without --id.
    assert "New Serving Service created" not in output
    assert '"data":[[' in output  # the stock style gives the engine's logits
    versions = {row["endpoint"]: row for row in stack.json("status")["endpoints"]}
    assert versions["by_hand"]["verified"]
    for name in ("by_hand", "stock_style"):
        stack.run("remove", name)


def test_the_first_answer_is_on_the_first_screen() -> None:
    lines = README.splitlines()
    assert next(at for at, line in enumerate(lines) if "curl" in line) < 40
