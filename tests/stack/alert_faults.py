"""What is done to a stack so that its alerts fire: for each a real fault, or a reason why not.

docs/monitoring.md has both tables.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.engine.triton_server import wait_until
from tests.stack.alert_scene import (
    NEW_TOKENS,
    PATIENCE_S,
    SEQUENCES,
    SLOW,
    STORY,
    STRANGE,
    STREAMS,
    TEXTS,
    Scene,
    stopped,
)
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB, Alert
from transformer_serving.desk.monitoring.rules import all_alerts
from transformer_serving.desk.monitoring.times import PAGE, TICKET

Again = Callable[[], None]


def rows(*names: str, job: str | None = None, severity: str | None = None) -> tuple[Alert, ...]:
    """All rules of these names; of one job or severity where an alert has a rule for each."""
    return tuple(
        alert
        for alert in all_alerts()
        if alert.name in names
        and job in (None, alert.labels.get("job", job))
        and severity in (None, alert.severity)
    )


@dataclass(frozen=True)
class Fault:
    """`done` begins it and gives what is to be repeated until the alerts have fired; at its end
    the fault is over.
    """

    name: str
    fires: tuple[Alert, ...]
    done: Callable[[Scene], AbstractContextManager[Again]]


@contextmanager
def strange_words(scene: Scene) -> Iterator[Again]:
    def ask() -> None:
        with ThreadPoolExecutor(4) as pool:
            bodies = [{"text": f"{STRANGE} {word}"} for word in range(20)]
            seen = list(pool.map(lambda body: scene.stack.seen(TEXTS, body), bodies))
        assert any(one.status == 502 for one in seen), seen
        time.sleep(0.2)

    yield ask


@contextmanager
def stopped_triton(scene: Scene) -> Iterator[Again]:
    """One request holds most of what may wait; others beside it are answered, seconds late."""
    large = {"text": [" ".join([TEXT] * 5)] * 70}
    story = {"text": "rain", "parameters": {"max_new_tokens": 2}}

    def ask() -> None:
        with ThreadPoolExecutor(25) as pool:
            # Itself and not its engines: one that is stopped with a lock takes Triton 2.51 along.
            with stopped(scene.pid("triton")):
                asked = [pool.submit(scene.stack.seen, SLOW, large)]
                time.sleep(0.3)
                for endpoint, body in ((SLOW, {"text": TEXT}), (STORY, story)):
                    asked += [pool.submit(scene.stack.seen, endpoint, body) for _ in range(12)]
                time.sleep(7)
            for one in asked:
                one.result()
        time.sleep(0.5)

    yield ask


@contextmanager
def crowd(scene: Scene, endpoint: str, body: Callable[[], Any], callers: int) -> Iterator[None]:
    """Callers that ask again as soon as they are answered, until the end."""
    ended = False

    def call() -> None:
        while not ended:
            if scene.stack.seen(endpoint, body()).status != 200:
                time.sleep(0.1)

    with ThreadPoolExecutor(callers) as pool:
        for _ in range(callers):
            pool.submit(call)
        try:
            yield
        finally:
            ended = True


def long_prompts(scene: Scene) -> AbstractContextManager[None]:
    """More callers than may run; no two sequences end at once because they began so."""
    chance = random.Random(7)

    def body() -> dict[str, Any]:
        new = chance.randint(NEW_TOKENS // 2, NEW_TOKENS)
        parameters = {"max_new_tokens": new, "ignore_eos": True}
        return {"text": scene.prompt, "parameters": parameters}

    return crowd(scene, STORY, body, STREAMS + 12)


@contextmanager
def as_many_as_may(scene: Scene) -> Iterator[Again]:
    with long_prompts(scene):
        yield lambda: time.sleep(0.2)


@contextmanager
def killed_story(scene: Scene) -> Iterator[Again]:
    def kill() -> None:
        with long_prompts(scene):
            wait_until(lambda: scene.running() > SEQUENCES / 2, PATIENCE_S)
            scene.engine(STORY).kill()
            time.sleep(2)
        scene.stack.until(lambda: scene.stack.rows()[STORY]["ready"], "it is loaded again")

    yield kill


@contextmanager
def held_bodies(scene: Scene) -> Iterator[Again]:
    """Two callers send most of a large body and then nothing; small ones find no room."""
    head = f"POST /serve/{TEXTS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with contextlib.ExitStack() as held:

        def ask() -> None:
            for _ in range(2):
                connection = socket.create_connection(("127.0.0.1", scene.stack.base))
                held.enter_context(connection)
                connection.sendall(f"{head}content-length: 190000\r\n\r\n".encode() + b" " * 98_000)
            for _ in range(10):
                scene.stack.seen(TEXTS, {"text": "rain " * 1600})
                time.sleep(0.1)

        yield ask


@contextmanager
def wrong_engine(scene: Scene) -> Iterator[Again]:
    folder = scene.stack.state.parent / "wrong"
    bundle = write_small(folder, Parts(scale=2.0, parity=True, wrong_at=16))
    scene.stack.run("deploy", str(bundle.folder), "--endpoint", "wrong", code=1)
    yield lambda: time.sleep(0.2)
    scene.stack.run("remove", "wrong")


@contextmanager
def one_word(scene: Scene) -> Iterator[Again]:
    with crowd(scene, SLOW, lambda: {"text": ["rain"] * 20}, 2):
        yield lambda: time.sleep(0.2)


def killed(part: str) -> Callable[[Scene], AbstractContextManager[Again]]:
    @contextmanager
    def done(scene: Scene) -> Iterator[Again]:
        def kill() -> None:
            os.kill(scene.pid(part), signal.SIGKILL)
            scene.stack.until(lambda: scene.stack.parts()[part]["health"] == "ok", "it is back")

        yield kill

    return done


@contextmanager
def no_control_plane(scene: Scene) -> Iterator[Again]:
    with stopped(scene.pid("control-plane")):
        os.kill(scene.pid("controller"), signal.SIGKILL)
        yield lambda: time.sleep(0.2)


@contextmanager
def clock_behind(scene: Scene) -> Iterator[Again]:
    scene.move_clock(-1000)
    yield lambda: time.sleep(0.2)
    scene.move_clock(0)


# Those of one row are done at the same time.
FAULTS = (
    (
        Fault(
            "texts have a word that a bundle's tokenizer has and its model lacks; by hand, as "
            "`convert` writes `known_ids`, by which workers refuse it",
            rows("EngineFailures", "RequestErrorBudgetBurn"),
            strange_words,
        ),
    ),
    (
        Fault(
            "Triton stands still (SIGSTOP) for seconds under a large request and small ones",
            rows(
                "WaitingTokensNearLimit",
                "WaitingTimeNearLimit",
                "LatencyBudgetBurn",
                "FirstTokenBudgetBurn",
            ),
            stopped_triton,
        ),
    ),
    (
        Fault(
            "more callers than may run send a language model its longest prompts",
            rows("StreamsNearLimit", "CacheNearlyFull"),
            as_many_as_may,
        ),
    ),
    (
        Fault(
            f"kill -9 of a language model's engine with {SEQUENCES} sequences in it",
            rows("SequencesCutShort"),
            killed_story,
        ),
    ),
    (
        Fault(
            "uploads that stop on their way hold the memory for bodies",
            rows("GatewayRefuses"),
            held_bodies,
        ),
        Fault(
            "a bundle's engine is wrong at one length",
            rows("ProofFailed", "EndpointNotReady", "GoldenRequestFails", severity=TICKET),
            wrong_engine,
        ),
        Fault("callers send texts of one word", rows("PaddingWaste"), one_word),
    ),
    (
        Fault(
            "kill -9 of Triton",
            rows("TritonNotReady") + rows("EndpointNotReady", "GoldenRequestFails", severity=PAGE),
            killed("triton"),
        ),
    ),
    (
        Fault(
            "kill -9 of the gateway",
            rows("NoFigures", job=INFERENCE_JOB) + rows("ScrapeFails"),
            killed("inference"),
        ),
    ),
    (
        Fault(
            "the control plane stands still (SIGSTOP), and the controller begins again (kill -9)",
            rows("NoFigures", "SyncStale", job=ENGINE_JOB),
            no_control_plane,
        ),
    ),
    (
        Fault(
            "the clock of all parts but Prometheus is 1000 s behind",
            rows("GoldenRoundsStale") + rows("SyncStale", job=INFERENCE_JOB),
            clock_behind,
        ),
    ),
)
# Alerts that nothing done from outside makes fire within the test, and why.
NOT_PROVOKED = {
    "PartRestarts": "a part would have to be started three times in two and a half seconds; "
    "tests/gateway/test_workers.py and tests/engine/test_rounds.py count starts",
    "TritonLacksEndpoint": "the embedded stack has one Triton",
    "LoadFailed": "no bundle that `deploy` takes fails so at once on a stack that is well; "
    "tests/engine/test_rounds.py has loads that fail",
    "EngineRebuilt": "no request makes a step of openvino_genai fail; "
    "tests/engine/test_generation_engine.py has a step that does",
}
