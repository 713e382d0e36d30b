"""Generated tokens a second, through HTTP, beside the seed's recipe and the engine alone.

`python -m benchmarks generation`. Ours streams; the recipe cannot, its callers wait for the whole.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs.engine_process import LAST_LINES
from benchmarks.runs.session import Session
from benchmarks.servers import environments
from benchmarks.servers.environments import environment_python
from benchmarks.servers.language_models import (
    NEW_TOKENS,
    PRECISIONS,
    PROMPT_TOKENS,
    RECIPE,
    SIZES,
    STREAMS,
    LanguageModel,
    Size,
    build_language_model,
    word,
)
from benchmarks.servers.process import Child, Unusable, free_ports, last_words, tree, use
from benchmarks.servers.site import deploy
from transformer_serving.contract.generation import Finish, Options, Sampling
from transformer_serving.desk.bench import load as generator, streams
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.step_report import StepReport

_PROMPT = " ".join(word(100 + 7 * at) for at in range(PROMPT_TOKENS))
_MIB = 2**20


@dataclass(frozen=True)
class Generation:
    """Rounds over all servers in turns, each load `seconds` long and a whole answer at least."""

    rounds: int = 7
    seconds: float = 8.0
    sizes: Sequence[Size] = SIZES

    def __call__(self, session: Session, report: StepReport) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for size in self.sizes:
            model = build_language_model(size, report)
            found[size.name] = self._served(session, model, report)
            session.so_far(found)
            self._alone(session.site.work, model, found[size.name], report)
            session.so_far(found)
        return found

    def _alone(
        self, work: Path, model: LanguageModel, found: dict[str, Any], report: StepReport
    ) -> None:
        """The engine's rows, into what was found of the model; why there are none, where it is so:
        an hour's rounds must outlive it."""
        for precision, bundle in model.bundles.items():
            report(f"{model.size.title}: the engine alone at {precision}")
            try:
                every = alone(bundle.model_folder, self.rounds, self.seconds, work / "alone.log")
            except Unusable as error:
                found["failed"][f"alone {precision}"] = str(error)
                report(f"{model.size.title}: {error}")
                continue
            found["loads"] |= _summed(
                {f"alone {precision} {at_once}": rows for at_once, rows in every.items()}
            )

    def _served(self, session: Session, model: LanguageModel, report: StepReport) -> dict[str, Any]:
        address = f"http://127.0.0.1:{session.site.port_base}/serve"
        names = {precision: f"{model.size.name}_{precision}" for precision in PRECISIONS}
        for precision, name in names.items():
            report(f"deploying {name}")
            deploy(session.site, model.bundles[precision].folder, name)
        rows: dict[str, list[dict[str, float]]] = {}
        with recipe(model, session.site.work, report) as (base, child):
            session.around["environments"]["recipes"] = environments.versions("recipes")
            for number, count in itertools.product(range(self.rounds), STREAMS):
                report(f"{model.size.title}: {count} streams, round {number + 1} of {self.rounds}")
                session.time_loop()
                found = {RECIPE: asked(base, child, count, self.seconds)}
                for precision, name in names.items():
                    found[precision] = streamed(f"{address}/{name}", count, self.seconds)
                for name, row in found.items():
                    rows.setdefault(f"{name} {count}", []).append(row)
            memory = {RECIPE: use(child.tree()).memory / _MIB}
        stubs = tree(session.site.triton_pid())[1:]
        for precision, name in names.items():
            own = [one for one in stubs if f"/{name}/" in " ".join(one.cmdline())]
            memory[precision] = use(own).memory / _MIB
        title, loads = model.size.title, _summed(rows)
        return {"title": title, "memory_mib": memory, "loads": loads, "failed": {}}


def _summed(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """By load the rounds' figures as they are; tables make ratios of them, round by round."""
    return {
        name: {key: [round(row[key], 3) for row in found] for key in found[0]}
        for name, found in rows.items()
    }


def streamed(url: str, count: int, seconds: float) -> dict[str, float]:
    """Tokens a second, milliseconds to the first token and between events (median, 99th)."""
    body = {
        "text": _PROMPT, "stream": True,
        "parameters": {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "do_sample": False},
    }  # fmt: skip
    [found] = streams.measure_streams(
        Address.of(url), generator.Payload("generation", _json(body)), (count,), seconds
    )
    assert found.first is not None
    gap = found.gap or streams.Spread(0, 0.0, 0.0, 0.0, 0.0)
    return {
        "tokens": found.tokens, "first_p50": found.first.p50, "first_p99": found.first.p99,
        "gap_p50": gap.p50, "gap_p99": gap.p99,
    }  # fmt: skip


def asked(base: str, child: Child, count: int, seconds: float) -> dict[str, float]:
    """Tokens a second of whole answers, over the time until the last one.

    The recipe answers one after the other, and computes for callers that are gone as well: where
    some gave up it is started again, or it would compute on the cores of who is measured next. One
    that answers nobody is asked once more, for an hour's rounds hang on it. Raises Unusable.
    """
    try:
        return _asked_once(base, child, count, seconds)
    except Unusable:
        child.stop()
        _start(base, child)
        return _asked_once(base, child, count, seconds)


def _asked_once(base: str, child: Child, count: int, seconds: float) -> dict[str, float]:
    run = generator.run(
        Address.of(f"{base}/generate"),
        [generator.Payload("generation", _json({"text": _PROMPT}))],
        generator.Closed(count, seconds),
    )
    answered = [one for one in run.exchanges if one.status == 200]
    if not answered:
        raise Unusable(f"the recipe answered none of {count} callers")
    if any(one.status == generator.NO_ANSWER for one in run.exchanges):
        child.stop()
        _start(base, child)
    took = max(one.done for one in answered) - min(one.sent for one in run.exchanges)
    return {"tokens": len(answered) * NEW_TOKENS / took}


@contextlib.contextmanager
def recipe(model: LanguageModel, work: Path, report: StepReport) -> Iterator[tuple[str, Child]]:
    """One worker; Raises Unusable."""
    python = environment_python("recipes", report)
    [port] = free_ports(1)
    environment = {
        "BENCH_MODEL": str(model.hugging_face), "BENCH_NEW_TOKENS": str(NEW_TOKENS),
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [
        str(python), "-m", "uvicorn", "generate_app:app", "--host=127.0.0.1", f"--port={port}",
        "--log-level=warning",
    ]  # fmt: skip
    folder = Path(__file__).parent.parent / "recipes"
    child = Child(RECIPE, command, work / "recipe.log", environment, folder)
    report(f"starting the recipe with {model.size.title}")
    try:
        base = f"http://127.0.0.1:{port}"
        _start(base, child)
        yield base, child
    finally:
        child.stop()


def _start(base: str, child: Child) -> None:
    child.start()
    child.wait_until(f"{base}/generate", body=_json({"text": _PROMPT}), limit_s=300)


def alone(
    folder: Path, rounds: int, seconds: float, log: Path
) -> dict[str, list[dict[str, float]]]:
    """The engine in a process of its own, without Triton, HTTP or tokenizer: always so many
    sequences, each followed by the next. Raises Unusable with what it said last."""
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.studies.generation", str(folder), str(rounds),
             str(seconds)],
            stdout=subprocess.PIPE, stderr=errors, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        said = last_words(log, LAST_LINES)
        raise Unusable(f"the engine alone ended with {done.returncode}: {said}")
    found: dict[str, list[dict[str, float]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _engine(folder: Path, rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    from google.protobuf import json_format  # type: ignore[import-untyped]

    from transformer_serving.engine.backends.generation.pipeline import OpenVinoPipeline
    from transformer_serving.engine.backends.generation.settings import read_generation_settings
    from transformer_serving.engine.backends.model_settings import read_settings
    from transformer_serving.engine.model_config import from_text

    config = from_text((folder / "config.pbtxt").read_text("utf-8"))
    # The JSON that Triton hands to a backend has the fields' own names.
    values = json_format.MessageToDict(config, preserving_proto_field_name=True)
    settings = read_generation_settings(read_settings(values))
    pipeline = OpenVinoPipeline(folder, settings)
    return {
        str(count): [_stepped(pipeline, count, seconds) for _ in range(rounds)] for count in STREAMS
    }


def _stepped(pipeline: Any, count: int, seconds: float) -> dict[str, float]:
    from transformer_serving.engine.backends.generation.calls import Call

    ids = np.array([100 + 7 * at for at in range(PROMPT_TOKENS)], np.int32)
    call = Call(ids, Options(NEW_TOKENS, (), Sampling(False, 1.0, 1.0, 0, 1.0), 0))
    begun = time.monotonic()
    live = {pipeline.start(call): begun for _ in range(count)}
    firsts: list[float] = []
    seen: set[Any] = set()
    tokens, ended = 0, begun
    while live:
        pipeline.step()
        now = time.monotonic()
        for handle, since in tuple(live.items()):
            part = handle.take()
            if part.ids and handle not in seen:
                seen.add(handle)
                firsts.append(1e3 * (now - since))
            if part.finish is Finish.RUNNING:
                continue
            del live[handle]
            # As the streams': whole answers count, over the time until the last one.
            tokens, ended = tokens + NEW_TOKENS, now
            if now - begun < seconds:
                live[pipeline.start(call)] = now
    return {"tokens": tokens / (ended - begun), "first_p50": float(np.median(firsts))}


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


if __name__ == "__main__":
    _folder, _rounds, _seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(_engine(Path(_folder), int(_rounds), float(_seconds))) + "\n")
