"""`python -m benchmarks generation`: its table from figures made by hand, and each way of asking on
a small model, with the recipe in this environment."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.report import generation_tables
from benchmarks.runs.results import Results
from benchmarks.servers import language_models
from benchmarks.servers.language_models import LanguageModel, Size, build_language_model
from benchmarks.servers.process import Unusable, cpu_s
from benchmarks.studies import generation
from tests.benchmarks.test_everything import values
from tests.stack.conftest import Stack, started
from transformer_serving.desk.bench import loops


def tiny(vocabulary: int) -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2, n_positions=128,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


TINY = Size("tiny", "a tiny GPT-2", 400, tiny)
OURS = {"tokens": [90.0, 100.0, 110.0], "first_p50": [5.0] * 3, "first_p99": [9.0] * 3,
        "gap_p50": [1.0] * 3, "gap_p99": [2.0] * 3}  # fmt: skip
ALONE = {"tokens": [100.0, 125.0, 110.0], "first_p50": [4.0] * 3}


def measured(title: str) -> dict[str, Any]:
    loads: dict[str, Any] = {}
    for count in language_models.STREAMS:
        loads[f"recipe {count}"] = {"tokens": [20.0, 25.0, 20.0]}
        for precision in language_models.PRECISIONS:
            loads[f"{precision} {count}"] = OURS
            loads[f"alone {precision} {count}"] = ALONE
    return {"title": title, "memory_mib": {"recipe": 900.4, "fp32": 700.0}, "loads": loads}


def run_of(date: str, *features: str, **sizes: dict[str, Any]) -> Results:
    of_all = values()
    machine = {**of_all["machine"], "features": list(features)}
    return Results({**of_all, "date": date, "machine": machine, "generation": sizes})


def dates(results: Results) -> dict[str, list[str]]:
    found = results.values["generation"]
    return {name: [one["run"]["date"] for one in runs] for name, runs in found.items()}


def test_the_table_says_times_and_what_was_wanted() -> None:
    run = generation_tables.joined(run_of("today", gpt2=measured("GPT-2 124M")), None)
    text = generation_tables.text(run)
    assert (
        "| bf16 | 8 | 100 | 20 | 4.50 (4.00 to 5.50) | ≥ 11 | 0.91 | ≥ 0.8 | 5 / 9 "
        "| 4 | 1 / 2 |" in text
    )
    assert "MiB resident of the model's process afterwards: recipe 900, fp32 700." in text


def test_where_the_engine_alone_could_not_be_measured_the_rest_stands() -> None:
    found = measured("GPT-2 124M")
    del found["loads"]["alone bf16 8"]
    found["failed"] = {"alone bf16": "the engine alone ended with 1: no\nmemory"}
    text = generation_tables.text(generation_tables.joined(run_of("today", gpt2=found), None))
    assert "| bf16 | 8 | 100 | 20 | 4.50 (4.00 to 5.50) | ≥ 11 | - | ≥ 0.8 | 5 / 9 | - |" in text
    assert (
        "Could not be measured here: alone bf16: the engine alone ended with 1: no memory" in text
    )


def test_an_engine_alone_that_fails_says_why_and_costs_no_other_row(tmp_path: Path) -> None:
    """A real process, which finds no model there."""
    folder = tmp_path / "nothing"
    with pytest.raises(Unusable, match=r"the engine alone ended with 1: .*No such file"):
        generation.alone(folder, 1, 0.1, tmp_path / "log")
    bundle = SimpleNamespace(model_folder=folder)
    model: Any = SimpleNamespace(size=TINY, bundles={"fp32": bundle})
    found: dict[str, Any] = {"loads": {"fp32 1": OURS}, "failed": {}}
    generation.Generation(1, 0.1)._alone(tmp_path, model, found, lambda line: None)
    assert found["loads"] == {"fp32 1": OURS}
    assert "No such file" in found["failed"]["alone fp32"]


def test_a_size_that_was_not_measured_again_stays_with_its_date() -> None:
    first = run_of("Monday", gpt2=measured("GPT-2 124M"), qwen2=measured("Qwen2 0.5B"))
    stored = generation_tables.joined(first, None)
    assert generation_tables.text(stored).count("Monday") == 2
    again = generation_tables.joined(run_of("Tuesday", gpt2=measured("GPT-2 124M")), stored)
    text = generation_tables.text(again)
    assert text.index("### GPT-2 124M\n\nTuesday") < text.index("### Qwen2 0.5B\n\nMonday")
    last = generation_tables.joined(run_of("Friday", qwen2=measured("Qwen2 0.5B")), again)
    assert dates(last) == {"gpt2": ["Tuesday"], "qwen2": ["Friday"]}


def test_each_run_says_the_recipes_versions_as_it_stored_them() -> None:
    first = run_of("Monday", "avx2", gpt2=measured("GPT-2 124M"))
    later = run_of("Tuesday", gpt2=measured("GPT-2 124M"))
    later.values["environments"] = {"recipes": {"torch": "2.13.0"}}
    text = generation_tables.text(
        generation_tables.joined(later, generation_tables.joined(first, None))
    )
    assert text.count("recipes (torch 2.13.0)") == 1
    assert text.index("Tuesday") < text.index("recipes (torch 2.13.0)")


def test_another_processor_takes_no_run_from_the_stored() -> None:
    gpt2 = measured("GPT-2 124M")
    stored = generation_tables.joined(run_of("Monday", "avx2", gpt2=gpt2), None)
    both = generation_tables.joined(run_of("Tuesday", "avx2", "amx_bf16", gpt2=gpt2), stored)
    assert dates(both) == {"gpt2": ["Monday", "Tuesday"]}
    text = generation_tables.text(both)
    assert text.count("### GPT-2 124M") == 1
    assert text.index("Monday") < text.index("Tuesday")
    again = generation_tables.joined(run_of("Friday", "avx2", gpt2=gpt2), both)
    assert dates(again) == {"gpt2": ["Friday", "Tuesday"]}


def test_a_run_that_failed_keeps_what_was_stored() -> None:
    stored = generation_tables.joined(run_of("Monday", gpt2=measured("GPT-2 124M")), None)
    failed = Results({**values(), "failed": {"generation": "no Triton"}})
    kept = generation_tables.joined(failed, stored)
    assert kept.values["generation"] == stored.values["generation"]
    assert kept.failed == failed.failed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_models, "BUILD", tmp_path_factory.mktemp("build"))
        made = build_language_model(TINY, lambda line: None)
        again = build_language_model(TINY, lambda line: None)
        assert {name: bundle.folder for name, bundle in made.bundles.items()} == {
            name: bundle.folder for name, bundle in again.bundles.items()
        }
        yield made


@pytest.mark.long
@pytest.mark.by_hand
def test_the_recipe_answers_and_is_asked(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "environment_python", lambda name, report: Path(sys.executable))
    with generation.recipe(model, tmp_path, lambda line: None) as (base, child):
        rate = generation.asked(base, child, 2, 0.5)["tokens"]
        assert rate > 0
        first = child.process
        assert child.tree()
        # Callers that do not wait leave it what they asked for.
        monkeypatch.setattr(loops, "_PATIENCE_S", 0.0)
        # One of them at least has its answer by then, however busy the machine is.
        seconds = max(1.0, 10 * language_models.NEW_TOKENS / rate)
        assert generation.asked(base, child, 64, seconds)["tokens"] > 0
        assert child.process is not None
        assert child.process is not first
        before = cpu_s(child.tree())
        time.sleep(1)
        assert cpu_s(child.tree()) - before < 0.5
    assert child.process is None


@pytest.mark.long
@pytest.mark.by_hand
def test_the_engine_alone_makes_tokens(model: LanguageModel, tmp_path: Path) -> None:
    found = generation.alone(model.bundles["bf16"].model_folder, 2, 0.2, tmp_path / "log")
    assert set(found) == {str(count) for count in language_models.STREAMS}
    assert all(len(rows) == 2 and row["tokens"] > 0 for rows in found.values() for row in rows)


@pytest.mark.long
@pytest.mark.by_hand
def test_ours_streams_every_token_that_was_asked_for(model: LanguageModel, tmp_path: Path) -> None:
    with started(tmp_path / "stack") as stack:
        found = _streamed(stack, model)
    assert found["tokens"] > 0
    assert 0 < found["first_p50"] <= found["first_p99"]


def _streamed(stack: Stack, model: LanguageModel) -> dict[str, float]:
    stack.run("deploy", str(model.bundles["fp32"].folder), "--endpoint", "tiny_fp32")
    return generation.streamed(stack.url("tiny_fp32"), 4, 0.5)
