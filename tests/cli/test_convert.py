"""`convert` as a user runs it: sizes, several engines, the table, JSON; and what it refuses."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModel, AutoTokenizer

from tests.tiny_models import save_classifier, save_encoder
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import ENDPOINT_TASKS
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import ENGINES, open_engine
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.signing import new_key
from transformer_serving.desk.cli import main
from transformer_serving.desk.cli.options import TASK_ALIASES
from transformer_serving.desk.convert_packages import INSTALL
from transformer_serving.desk.export import endpoint_json
from transformer_serving.desk.failure import Failure, PrecisionRefused
from transformer_serving.desk.parity import comparison, gain, latency as latency_table
from transformer_serving.desk.parity.check import TOLERANCES, Tolerance
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.engine.model_config import from_text

pytestmark = pytest.mark.usefixtures("graphs_are_kept")


def test_sizes_and_the_table_of_every_engine_asked_for(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One call a round: what is looked at is the table, not its figures.
    monkeypatch.setattr(latency_table, "_ROUND_MS", 0)
    target = tmp_path / "bundle"
    done = CliRunner().invoke(
        main,
        ["convert", str(tiny_classifier), "--output", str(target), "--compare", "--json",
         "--engine", "onnxruntime", "--engine", "openvino", "--precision", "fp32",
         "--seq-len", "8", "20", "40", "--batch", "1", "2", "6"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["engine"], told["precision"]) == ("onnxruntime", "fp32")
    names = [(row["texts"], row["tokens"], row["name"].split()[0]) for row in told["latencies_ms"]]
    assert names == [
        (texts, tokens, name)
        for texts, tokens in ((1, 8), (1, 20), (1, 40), (2, 20), (6, 20), (6, 40))
        for name in ("PyTorch", "onnxruntime,", "openvino")
    ]
    assert all(row["passes"] in (True, None) for row in told["latencies_ms"])
    assert {row["device"] for row in told["latencies_ms"]} == {"cpu"}
    assert not {"not_made", "not_measured"} & set(told)
    assert told["measured"]["onnxruntime"]
    bundle = open_bundle(target)
    assert bundle.endpoint.tokens.buckets == (*range(8, 33, 2), 36, 40)
    assert bundle.endpoint.limits.max_batch_size == 6
    config = from_text((bundle.model_folder / "config.pbtxt").read_text())
    assert config.max_batch_size == 6
    assert [sample.name for sample in config.model_warmup] == [
        f"tokens{size}" for size in bundle.endpoint.tokens.buckets
    ]


def test_a_row_that_cannot_be_made_is_told_and_the_others_are_measured(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of bf16 on a GPU that has none."""
    monkeypatch.setattr(latency_table, "_ROUND_MS", 0)

    def build(precision: str, *given: object) -> EngineFiles:
        if precision == "bf16":
            raise PrecisionRefused("no bf16 here")
        return made(precision, *given)  # type: ignore[arg-type]

    made = ENGINES["openvino"].build
    row = dataclasses.replace(ENGINES["openvino"], build=build, precisions=("fp32", "bf16"))
    monkeypatch.setitem(ENGINES, "openvino", row)
    target = tmp_path / "bundle"
    command = ["convert", str(tiny_classifier), "--output", str(target), "--compare"]
    command += ["--engine", "onnxruntime", "--engine", "openvino", "--batch", "1", "1", "2"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "openvino bf16 is not in the table, not made: no bf16 here" in lines
    measured = [line.split(",")[0] for line in lines if line.startswith("parity: measuring ")]
    assert measured
    assert len(set(measured)) == len(measured)
    # CliRunner's output is a pipe: a row is a line, whatever its length.
    [first, *_] = [line for line in lines if line.split()[:1] == ["1x16"]]
    assert "PyTorch" in first
    assert "(cpu)" in first
    assert any(line.startswith("milliseconds of one call") for line in lines)
    assert any("openvino fp32 (cpu)" in line for line in lines)
    kept = open_bundle(target).manifest.parity
    assert {row["name"].split()[0] for row in kept["latencies_ms"]} == {
        "PyTorch", "onnxruntime,", "onnxruntime", "openvino"
    }  # fmt: skip


@pytest.mark.parametrize("end", ["failed", "interrupted", "interrupted-while-importing"])
def test_the_bundle_is_made_where_the_measuring_ends_early(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    interrupted = end != "failed"

    def measure(*_: object) -> None:
        if not interrupted:
            raise RuntimeError("no memory for this\nand a page of advice")
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            if end == "interrupted":
                raise
            # As pybind11 makes of it.
            raise ImportError("initialization failed") from error

    monkeypatch.setattr(comparison, "measure", measure)
    target = tmp_path / "bundle"
    command = ["convert", str(tiny_classifier), "--output", str(target), "--compare"]
    done = CliRunner().invoke(main, [*command, "--engine", "onnxruntime", "--precision", "fp32"])
    assert done.exit_code == interrupted, done.output
    why = "it was ended before it was done" if interrupted else "RuntimeError: no memory for this"
    said = f"nothing was measured: {why}; the bundle is made all the same"
    assert said in done.output.splitlines()
    assert (done.output.splitlines()[-1] == "Aborted!") is interrupted
    assert "latencies_ms" not in open_bundle(target).manifest.parity
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_is_signed_before_it_is_spoken_of(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that was closed while it was measured, or `| head`, takes no more lines."""

    def leave(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("transformer_serving.desk.cli.convert._say", leave)
    target = tmp_path / "bundle"
    file, key = new_key("me", tmp_path)
    command = ["convert", str(tiny_classifier), "--output", str(target), "--sign", str(file)]
    done = CliRunner().invoke(main, [*command, "--engine", "onnxruntime", "--precision", "fp32"])
    assert done.exit_code != 0
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, key.public)
    assert open_bundle(target).manifest.engine == "onnxruntime"


def test_a_gpu_that_torch_sees_is_measured_too_and_named(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by the CPU: no test has a GPU."""
    monkeypatch.setattr(latency_table, "_ROUND_MS", 0)
    rows = (("cpu", "cpu", "fp32"), ("gpu", "cpu", "fp32"), ("gpu", "cpu", "fp16"))
    monkeypatch.setattr(comparison, "_torch_rows", lambda: iter(rows))
    monkeypatch.setattr(latency_table, "gpu", lambda: "NVIDIA Played")
    command = ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle"), "--json"]
    command += ["--engine", "onnxruntime", "--precision", "fp32", "--compare"]
    done = CliRunner().invoke(
        main, [*command, "--seq-len", "20", "20", "20", "--batch", "1", "1", "1"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    found = [(row["name"].split()[0], row["precision"], row["device"])
             for row in told["latencies_ms"]]  # fmt: skip
    assert found == [
        ("PyTorch", "fp32", "cpu"), ("PyTorch", "fp32", "gpu"), ("PyTorch", "fp16", "gpu"),
        ("onnxruntime,", "fp32", "cpu"),
    ]  # fmt: skip
    assert told["measured"]["gpu"] == "NVIDIA Played"
    assert comparison.device_of("tensorrt") == "gpu"


def test_tokens_that_the_model_has_no_row_for_are_remarked_on_and_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.add_tokens([f"<word{at}>" for at in range(130 - len(tokenizer))])
    # One that parity would write out, were it known.
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.save_pretrained(str(folder))
    target = tmp_path / "bundle"
    done = CliRunner().invoke(
        main,
        ["convert", str(folder), "--output", str(target), "--engine", "onnxruntime",
         "--precision", "fp32", "--seq-len", "8", "20", "40", "--batch", "1", "2", "6"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "the tokenizer has tokens beyond the 120 rows of the model's embeddings" in done.output
    endpoint = open_bundle(target).endpoint
    files = EngineFiles("onnxruntime", "fp32", (target / "model" / "model.onnx",))
    local = LocalEndpoint(endpoint, (target / "tokenizer.json").read_bytes(), open_engine(files))
    assert local.answer({"text": "the train left"})
    unknown = tokenizer.convert_ids_to_tokens(129)
    with pytest.raises(ServingError) as caught:
        local.answer({"text": f"the {unknown} left"})
    assert (caught.value.kind.status, caught.value.limit) == (422, 120)


@pytest.mark.parametrize("asked", [False, True])
def test_an_endpoint_of_shorter_texts_than_its_models_is_remarked_on(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setattr(endpoint_json, "LONGEST_UNASKED", 24)
    options = ["--max-length", "24"] if asked else []
    done = CliRunner().invoke(
        main,
        ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle"), "--json",
         "--engine", "onnxruntime", "--precision", "fp32", *options],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert open_bundle(tmp_path / "bundle").endpoint.tokens.max_length == 24
    remarks = json.loads(done.stdout)["remarks"]
    assert len(remarks) == (not asked)
    for remark in remarks:
        assert remark.startswith("the endpoint takes texts of up to 24 tokens, the model up to 48;")
        assert "longer ones are refused with 413; --max-length 48 takes them all" in remark


@pytest.fixture
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a round: nothing here depends on how long one takes."""
    monkeypatch.setattr(gain, "_ROUND_MS", 0)


@pytest.mark.usefixtures("quick_rounds")
@pytest.mark.parametrize(("least", "precision"), [(0.0, "int8"), (1e9, None)])
def test_int8_is_taken_where_it_is_allowed_and_measured_the_faster_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    least: float,
    precision: str | None,
) -> None:
    # What counts as faster decides here, not this machine's times; and whether int8 passes is its
    # processor's (docs/decisions/precisions.md).
    monkeypatch.setattr(gain, "LEAST", least)
    monkeypatch.setitem(
        TOLERANCES, "int8", Tolerance(difference=1.0, cosine=1e-6, agreement=0.0, raw=1.0)
    )
    model = save_classifier(tmp_path / "model", seed=5, initializer_range=0.15)
    target = tmp_path / "bundle"
    command = ["convert", str(model), "--output", str(target), "--allow", "int8", "--json"]
    done = CliRunner().invoke(
        main, [*command, "--seq-len", "8", "20", "40", "--batch", "1", "2", "6"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    stays = told["gain"]["instead_of"]
    assert stays in ("fp32", "bf16")
    assert told["gain"]["taken"] == (precision is not None)
    assert told["precision"] == (precision or stays)
    assert told["parity"]["precision"] == told["precision"]
    assert told["refused"] == []
    kept = open_bundle(target).manifest
    assert kept.precision == told["precision"]
    stored = kept.parity["gain"]
    assert stored["measured"]["processor"]
    # No larger than the endpoint's own calls.
    assert [(row["texts"], row["tokens"]) for row in stored["shapes"]] == [
        (1, 16),
        (1, 40),
        (6, 32),
    ]


@pytest.mark.usefixtures("quick_rounds")
def test_int8_is_made_of_a_graph_whose_weights_lie_beside_it(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a model of more than 1.8 GB."""
    monkeypatch.setattr("transformer_serving.desk.export.onnx.INLINE_LIMIT", 0)
    monkeypatch.setattr(gain, "LEAST", 1e9)
    monkeypatch.setitem(
        TOLERANCES, "int8", Tolerance(difference=9.0, cosine=-1.0, agreement=0.0, raw=9.0)
    )
    target = tmp_path / "bundle"
    command = ["convert", str(tiny_classifier), "--output", str(target), "--json"]
    command += ["--engine", "onnxruntime", "--allow", "int8"]
    done = CliRunner().invoke(
        main, [*command, "--seq-len", "8", "20", "40", "--batch", "1", "2", "6"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["precision"], told["gain"]["taken"]) == ("fp32", False)
    names = {path.name for path in open_bundle(target).model_folder.iterdir()}
    assert {"model.onnx", "export.onnx.data"} <= names


def test_an_engine_that_its_builder_cannot_make_is_refused_in_one_line(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> EngineFiles:
        raise RuntimeError("no kernel for this\nand a page of advice")

    row = dataclasses.replace(ENGINES["onnxruntime"], build=fail)
    monkeypatch.setitem(ENGINES, "onnxruntime", row)
    command = ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle")]
    done = CliRunner().invoke(main, [*command, "--engine", "onnxruntime"])
    assert done.exit_code == 2, done.output
    last = done.output.splitlines()[-1]
    assert last.startswith("error: engine onnxruntime cannot be built in fp32 of this model")
    assert "(RuntimeError: no kernel for this)" in last


def test_an_allowed_precision_that_is_not_made_leaves_the_other_one(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr("transformer_serving.desk.builders.quantization.write_dynamic_int8", fail)
    command = ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle"), "--json"]
    command += ["--seq-len", "8", "20", "40", "--batch", "1", "2", "6"]
    done = CliRunner().invoke(main, [*command, "--engine", "onnxruntime", "--allow", "int8"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["precision"] == "fp32"
    assert "cannot be built in int8 of this model (RuntimeError: no kernel" in told["refused"][0]
    assert told["refused"][0].endswith("; it stays fp32")


def test_an_allowed_precision_whose_package_is_missing_is_told_how_to_install_it(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: found(name, *more) if name != "nncf" else None,
    )
    command = ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle")]
    done = CliRunner().invoke(main, [*command, "--engine", "openvino", "--allow", "int8"])
    assert done.exit_code == 2, done.output
    assert f"needs nncf; install it {INSTALL}" in done.output
    assert not (tmp_path / "bundle").exists()


def test_each_measuring_tells_its_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What --allow measures may be of the same shapes as the table of --compare."""

    def convert(*given: Any) -> None:
        for rounds in (2, 4):
            for done in range(rounds):
                given[-1]("1x16", done, rounds)
        raise Failure("enough")

    monkeypatch.setattr("transformer_serving.desk.conversion.encoder.convert", convert)
    done = CliRunner().invoke(main, ["convert", "x", "--output", str(tmp_path / "bundle")])
    told = [line for line in done.output.splitlines() if "measuring" in line]
    assert told == [f"parity: measuring 1x16, 0 of {rounds} rounds" for rounds in (2, 4)]


def test_int8_that_fails_parity_is_not_measured(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        TOLERANCES, "int8", Tolerance(difference=0.0, cosine=1.0, agreement=1.0, raw=0.0)
    )
    command = ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle")]
    command += ["--seq-len", "8", "20", "40", "--batch", "1", "2", "6"]
    done = CliRunner().invoke(main, [*command, "--allow", "int8", "--precision", "auto", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["precision"] != "int8"
    assert "gain" not in told
    assert any(line.endswith(f"; it stays {told['precision']}") for line in told["refused"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--engine", "openvino", "--engine", "onnxruntime"), "several --engine are for --compare"),
        (("--batch", "2", "4", "8"), "--batch: MIN must be 1"),
        (("--seq-len", "16"), "--seq-len takes three numbers, MIN OPT MAX, such as"),
        (("--batch", "16", "--engine", "openvino"), "'--engine' is no number; --batch takes three"),
        (("--seq-len", "0", "1", "2"), "0 is not in the range x>=1"),
        (("--backend", "onnx"), "is named by --engine, such as --engine onnxruntime;"),
        (("--backend", "tensorrt", "onnx"), "is named by --engine, such as --engine tensorrt;"),
        (("-m", "X"), "no such option: -m; the model is named without an option"),
        (("--name", "x"), "no such option: --name; a name is given where it is served"),
        (("--verbose",), "no such option: --verbose; each step is told without an option"),
        (("--batch-size", "1", "2", "4"), "are named by --batch MIN OPT MAX, such as --batch 1 8"),
        (("--colour",), "No such option"),
        (("--engine", "onnxruntime", "--precision", "bf16"), "has no precision 'bf16'"),
        (("--engine", "tensorrt"), "needs TensorRT"),
        (("--allow", "int8", "--precision", "bf16"), "--allow int8 is for --precision auto"),
        (("--allow", "int8", "--task", "text-generation"), "or name --precision int8"),
        (("--pooling", "cls", "--task", "text-generation"), "and this endpoint answers none"),
        (("--allow", "int8", "--engine", "vllm"), "engine 'vllm' has no precision 'int8'"),
        (("--allow", "int8", "--engine", "torch"), "engine 'torch' has no precision 'int8'"),
        (("--max-running", "0"), "'--max-running': 0 is not in the range 1<=x<=4096"),
        (("--kv-precision", "u4"), "'--kv-precision': 'u4' is not one of 'f32'"),
        (("--prefix-cache", "on"), "prefix_cache: engine parameters are for --task text-generati"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    missing = str(tmp_path / "no-model")
    done = CliRunner().invoke(main, ["convert", missing, "--output", str(tmp_path / "b"), *options])
    assert done.exit_code == 2
    assert said in done.output


def test_an_output_that_cannot_be_is_refused_before_any_work(
    tiny_classifier: Path, tmp_path: Path
) -> None:
    taken, file = tmp_path / "taken", tmp_path / "file"
    taken.mkdir()
    file.write_text("kept")
    (taken / "notes.txt").write_text("kept")
    cases = (
        (taken, (), "exists and is no bundle; name another --output"),
        (file / "bundle", (), "nothing can be written into"),
        (tmp_path / "b", ("--calibration", str(tmp_path / "no.txt")), "--calibration: "),
    )
    for target, options, said in cases:
        command = ["convert", str(tiny_classifier), "--output", str(target), *options]
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert "export:" not in done.output
    assert [path.name for path in taken.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "b").exists()


def test_a_conversion_that_is_ended_leaves_nothing(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left beside the target would be gigabytes."""

    def end(_source: object, folder: Path) -> None:
        (folder / "export.onnx").write_text("weights")
        os.kill(os.getpid(), signal.SIGTERM)

    def unheard(*_: object) -> None:
        raise AssertionError("SIGTERM is left to the process")

    before = signal.signal(signal.SIGTERM, unheard)
    monkeypatch.setattr("transformer_serving.desk.conversion.encoder.onnx_graph", end)
    command = ["convert", str(tiny_classifier), "--output", str(tmp_path / "bundle")]
    try:
        done = CliRunner().invoke(main, command)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.exit_code, done.output.splitlines()[-1]) == (1, "Aborted!")
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_there_is_not_is_refused_before_the_model_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = "transformer_serving.desk.conversion.encoder.open_source"
    monkeypatch.setattr(opened, lambda *_, **__: pytest.fail("it was opened"))
    asked = ["convert", "someone/a-model", "--output", str(tmp_path / "b"), "--task", "chat"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    shown = CliRunner().invoke(main, ["convert", "--help"]).output
    for task in ENDPOINT_TASKS:
        assert f"'{task}'" in done.output
        assert task in "".join(shown.split())


@pytest.mark.parametrize(("alias", "task"), TASK_ALIASES.items())
@pytest.mark.parametrize("name", ["convert", "bundle", "adopt"])
def test_a_task_is_also_known_by_the_name_that_others_give_it(
    name: str, alias: str, task: str
) -> None:
    command = main.commands[name]
    [option] = [one for one in command.params if one.name == "task"]
    context = click.Context(command)
    assert option.type_cast_value(context, alias) == task
    assert option.type_cast_value(context, task) == task


def test_a_model_without_modules_pools_as_it_is_asked_to(tmp_path: Path) -> None:
    """Both the engine and the reference, so neither would find the other wrong."""
    model = save_encoder(tmp_path / "model")
    target = tmp_path / "bundle"
    command = ["convert", str(model), "--output", str(target), "--json", "--precision", "fp32"]
    command += ["--task", "embedding", "--pooling", "cls", "--engine", "onnxruntime"]
    command += ["--seq-len", "8", "20", "40", "--batch", "1", "2", "6"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["remarks"] == []
    golden = open_bundle(target).manifest.golden
    tokens = AutoTokenizer.from_pretrained(str(model))(golden.request["text"], return_tensors="pt")
    with torch.inference_mode():
        [first] = AutoModel.from_pretrained(str(model))(**tokens).last_hidden_state[:, 0]
    assert golden.answer["embedding"] == pytest.approx(first.tolist(), abs=1e-4)
