"""The parameters of a language model's engine, as options of `convert`: taken, written, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.language_models import POSITIONS, save_language_model
from transformer_serving.contract.engine_parameters import OPENVINO, parameters_of
from transformer_serving.contract.heads import GENERATION
from transformer_serving.desk.builders.language_model import precisions_with_cache
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.cli import main
from transformer_serving.desk.conversion import language_model
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.export.language_model import export_language_model
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.engine.backends.generation.settings import read_generation_settings
from transformer_serving.engine.backends.model_settings import ModelSettings
from transformer_serving.engine.model_config import from_text

ROWS = parameters_of(OPENVINO)
# Other values than the defaults, of every row. One call may wait, and a proof asks fifteen at once.
GIVEN = {
    "num_kv_blocks": str(POSITIONS // 32 + 1),
    "kv_precision": "f16",
    "max_running": "3",
    "max_waiting": "1",
    "max_num_batched_tokens": "100",
    "prefix_cache": "on",
    "send_gap_ms": "50",
    "intra_op_thread_count": "1",
}


def quiet(step: str, detail: str) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model, and its graph."""
    model = save_language_model("gpt2", tmp_path_factory.mktemp("gpt2"))
    return model, export_language_model(open_language_model(str(model)))


@pytest.fixture
def model(exported: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose conversions take a copy of its graph: their parameters alone differ."""
    folder, graph = exported
    monkeypatch.setattr(language_model, "export_language_model", lambda _: graph.clone())
    return folder


@pytest.mark.slow
def test_every_option_is_a_parameter_of_the_bundle(model: Path, tmp_path: Path) -> None:
    assert set(GIVEN) == set(ROWS)
    target = tmp_path / "bundle"
    options = [part for name, row in ROWS.items() for part in (row.flag, GIVEN[name])]
    command = ["convert", str(model), "--output", str(target), "--task", GENERATION]
    done = CliRunner().invoke(main, [*command, "--precision", "bf16", "--json", *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["precision"] == "bf16"
    text = (open_bundle(target).model_folder / "config.pbtxt").read_text("utf-8")
    parameters = {name: value.string_value for name, value in from_text(text).parameters.items()}
    assert {name: parameters[name] for name in GIVEN} == GIVEN
    read = read_generation_settings(ModelSettings(0, (), (), 1, "", parameters, 0))
    assert (read.kv_blocks, read.kv_precision, read.max_running, read.max_waiting) == (
        17, "f16", 3, 1,
    )  # fmt: skip
    assert (read.step_tokens, read.prefix_cache, read.send_gap_s, read.threads) == (
        100, True, 0.05, 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"num_kv_blocks": "15"},
            "'num_kv_blocks' must be at least 16, which hold one sequence of the model's 512 "
            "positions, got 15",
        ),
        ({"max_waiting": "0"}, "'max_waiting' must be a whole number from 1 to 1000000, got '0'"),
        ({"send_gap_ms": "9" * 30}, "'send_gap_ms' must be a whole number from 1 to 10000, got"),
        (
            {"cache": "on"},
            "parameter 'cache' is unknown to engine openvino; there are num_kv_blocks",
        ),
    ],
)
def test_what_the_model_cannot_have_is_refused_before_it_is_exported(
    parameters: dict[str, str], said: str, tmp_path: Path
) -> None:
    model = save_language_model("gpt2", tmp_path / "model")
    request = ConvertRequest(str(model), task=GENERATION, engine_parameters=parameters)
    steps: list[str] = []
    with pytest.raises(ConversionRefused) as caught:
        convert(request, tmp_path / "bundle", lambda step, detail: steps.append(step))
    assert said in str(caught.value)
    assert steps == ["open"]


@pytest.mark.parametrize(
    ("precision", "kept", "able"),
    [("fp32", "bf16", "f32, f16, u8"), ("int8", "bf16", "f32, f16, u8"),
     ("bf16", "f32", "bf16, f16, u8")],
)  # fmt: skip
def test_a_cache_that_a_precision_has_on_no_processor_is_refused_before_it_is_exported(
    precision: str, kept: str, able: str, tmp_path: Path
) -> None:
    model = save_language_model("gpt2", tmp_path / "model")
    asked = {"kv_precision": kept}
    request = ConvertRequest(
        str(model), task=GENERATION, precision=precision, engine_parameters=asked
    )
    steps: list[str] = []
    with pytest.raises(ConversionRefused) as caught:
        convert(request, tmp_path / "bundle", lambda step, detail: steps.append(step))
    said = f"'kv_precision' of precision {precision} must be one of {able}, got '{kept}'"
    assert said in str(caught.value)
    assert steps == ["open"]


def test_of_several_precisions_those_are_tried_that_have_the_cache() -> None:
    assert precisions_with_cache(("bf16", "fp32"), {"kv_precision": "f32"}) == ("fp32",)
    assert precisions_with_cache(("bf16", "fp32"), {"kv_precision": "bf16"}) == ("bf16",)
    assert precisions_with_cache(("bf16", "fp32"), {"kv_precision": "u8"}) == ("bf16", "fp32")
    assert precisions_with_cache(("bf16", "fp32"), {}) == ("bf16", "fp32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--num-kv-blocks", "2147483647"), "with a --num-kv-blocks below 2147483647 where memory"),
        (("--kv-precision", "u8"), "leave --kv-precision u8 out, or name a more exact one"),
    ],
)
def test_parameters_with_which_the_engine_is_not_right_are_refused(
    options: tuple[str, str], said: str, model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    command = ["convert", str(model), "--output", str(target), "--task", GENERATION]
    done = CliRunner().invoke(main, [*command, "--precision", "fp32", *options])
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())
    assert not target.exists()
