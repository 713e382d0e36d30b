"""A small language model converted for vLLM: what the bundle holds, and what makes none."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

from preprocess.generation.detokenizer import BROKEN
from tests.language_models import save_language_model
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.vllm.tensors import INPUTS, OUTPUTS
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.bundle.writer import renew_bundle
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.cli import main
from transformer_serving.desk.conversion.encoder import Converted, ConvertRequest, convert
from transformer_serving.desk.conversion.vllm_model import NotRun
from transformer_serving.desk.deploy.endpoint import deploy
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.doctor.triton import check_bundle
from transformer_serving.desk.failure import ConversionRefused, Failure
from transformer_serving.desk.local.record import Ports, StackRecord
from transformer_serving.desk.parity.continuations import TOLERANCES, Reference
from transformer_serving.desk.parity.golden_continuation import golden_continuations, surest
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.engine.model_config import from_text
from transformer_serving.engine.proof.greedy_set import GreedySet, GreedyTolerance, read_greedy_set

pytestmark = pytest.mark.slow


def quiet(step: str, detail: str) -> None:
    """No progress."""


def asked(model: Path, **changes: Any) -> ConvertRequest:
    return ConvertRequest(str(model), **{"task": GENERATION, "engine": "vllm", **changes})


def test_a_family_that_vllm_lacks_is_refused_with_the_engine_that_has_it(tmp_path: Path) -> None:
    neo = save_language_model("gpt_neo", tmp_path / "neo")
    with pytest.raises(ConversionRefused, match=r"no model for GPTNeoForCausalLM, .* openvino"):
        convert(asked(neo), tmp_path / "bundle", quiet)
    assert not (tmp_path / "bundle").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what no bundle may have beside it."""
    folder = save_language_model("llama", tmp_path_factory.mktemp("llama") / "model")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that nobody reads")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def done(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    parameters = {"gpu_memory_utilization": "0.3", "enable_prefix_caching": "off"}
    request = asked(model, name="small", max_length=256, engine_parameters=parameters)
    return convert(request, tmp_path_factory.mktemp("bundle") / "bundle", quiet)


def parity_set(bundle: Bundle) -> GreedySet:
    return read_greedy_set((bundle.model_folder / "parity.json").read_bytes())


def test_the_bundle_is_the_models_folder_as_vllm_reads_it(done: Converted, model: Path) -> None:
    bundle = open_bundle(done.bundle.folder)
    names = {path.name for path in bundle.model_folder.iterdir()}
    # Newer versions of transformers write no special_tokens_map.json.
    assert names - {"special_tokens_map.json"} == {
        "config.pbtxt", "manifest.json", "parity.json", "model.json", "config.json",
        "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    }  # fmt: skip
    folder = bundle.model_folder
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert (folder / "tokenizer.json").read_bytes() == (
        bundle.folder / "tokenizer.json"
    ).read_bytes()
    assert "auto_map" not in json.loads((folder / "config.json").read_text())
    assert json.loads((folder / "model.json").read_text()) == {
        "model": ".",
        "load_format": "safetensors",
        "dtype": "bfloat16",
        "max_model_len": 256,
        "gpu_memory_utilization": 0.3,
        "enable_prefix_caching": False,
    }
    generation = bundle.endpoint.generation
    assert generation is not None
    assert (generation.engine, generation.max_positions) == ("vllm", 256)


def test_triton_and_clearml_are_told_the_backends_tensors(done: Converted) -> None:
    config = from_text((done.bundle.model_folder / "config.pbtxt").read_text("utf-8"))
    assert (config.backend, config.platform, config.max_batch_size) == ("vllm", "", 0)
    assert config.model_transaction_policy.decoupled
    # Its own model.py, and no file of the version's.
    assert config.default_model_filename == ""
    [group] = config.instance_group
    assert (group.kind, group.count) == (type(group).KIND_MODEL, 1)
    assert [tensor.name for tensor in config.input] == list(INPUTS)
    assert [tensor.name for tensor in config.output] == list(OUTPUTS)
    assert [tensor.name for tensor in config.input if not tensor.optional] == ["text_input"]
    line = " ".join(add_arguments(done.bundle, "writer", "some-id"))
    assert "--input-type object object bool bool" in line
    assert line.endswith('--aux-config backend="vllm"')


def test_nothing_is_called_proven_and_what_is_to_be_asked_is_there(done: Converted) -> None:
    manifest = done.bundle.manifest
    assert (manifest.engine, manifest.precision) == ("vllm", "bf16")
    assert manifest.parity["unverified"].startswith("not run at convert: vLLM takes a GPU")
    assert "largest_difference" not in manifest.parity
    assert isinstance(done.parity, NotRun)
    assert manifest.golden.answer["text"].startswith(manifest.golden.request["text"])
    found = parity_set(done.bundle)
    assert (found.reference, found.precision) == ("transformers.generate", "bf16")
    tokenizer = Tokenizer.from_buffer((done.bundle.folder / "tokenizer.json").read_bytes())
    for row in found.rows:
        assert len(row.texts) == len(row.continuation)
        for at, text in enumerate(row.texts):
            ids = (*row.prompt, *row.continuation[:at])
            assert text is None or tuple(tokenizer.encode(text).ids) == ids
    lengths = {len(row.prompt) for row in found.rows}
    assert len(lengths) > 5
    assert max(lengths) > 100
    assert {row.repetition_penalty for row in found.rows} == {1.0, 1.3}
    assert any(row.eos_ids for row in found.rows)


def test_the_golden_answer_is_one_that_bf16_finds_too_or_the_manifest_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the penalty that the endpoint's own requests have."""
    penalized = tmp_path / "model"
    shutil.copytree(model, penalized)
    defaults = penalized / "generation_config.json"
    said = json.loads(defaults.read_text())
    defaults.write_text(json.dumps({**said, "repetition_penalty": 1.2}))
    source = open_language_model(str(penalized), engine="vllm")
    reference = Reference(source)
    found = golden_continuations(source, reference)
    spread = sum(reference.spreads) / len(reference.spreads)
    assert {one.row.repetition_penalty for one in found} == {1.2}
    assert {one.asked.options.sampling.repetition_penalty for one in found} == {1.2}
    chosen = surest(found, 0.1 * spread)
    assert chosen.margin == max(one.margin for one in found)
    assert chosen.margin > 0.1 * spread
    # Where none is beyond it, what is written whole goes before what is a little surer.
    assert not any(BROKEN in one.written for one in (chosen, surest(found, 1e9)))
    monkeypatch.setitem(TOLERANCES, "bf16", GreedyTolerance(equal=0.95, margin=1, difference=0.1))
    parity = convert(asked(penalized, max_length=256), tmp_path / "bundle", quiet).parity
    assert isinstance(parity, NotRun)
    assert "an engine of bf16 may take the next up to 1" in parity.unverified


def test_a_bundle_can_be_renewed(done: Converted, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(done.bundle.folder, copy)
    renewed = renew_bundle(copy)
    assert renewed.manifest.bundle_version == done.bundle.manifest.bundle_version
    assert parity_set(renewed) == parity_set(done.bundle)


def test_the_commands_say_that_it_was_not_run(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    command = ["convert", str(model), "--output", str(target), "--task", GENERATION]
    options = ["--engine", "vllm", "--precision", "fp16", "--max-length", "64"]
    ran = CliRunner().invoke(main, [*command, *options, "--gpu-memory-utilization", "0.9"])
    assert ran.exit_code == 0, ran.output
    assert "(vllm, fp16); not run at convert: vLLM takes a GPU" in " ".join(ran.output.split())
    shown = CliRunner().invoke(main, ["show", str(target)], terminal_width=200)
    words = " ".join(shown.output.split())
    assert "not run at convert" in words
    assert "asked where it is served" in words
    wrong = CliRunner().invoke(main, [*command, *options, "--gpu-memory-utilization", "2"])
    assert wrong.exit_code == 2
    assert "must be a number above 0 and at most 1" in " ".join(wrong.output.split())


def test_the_embedded_stack_is_not_asked_to_serve_it(done: Converted, tmp_path: Path) -> None:
    cli = ClearmlCli({}, "id")
    target = DeployTarget(cli, "http://files", "http://serve", tmp_path / "lock", triton="2.51.0")
    with pytest.raises(Failure) as caught:
        deploy(target, done.bundle, "writer", timeout_s=5, report=lambda step: None)
    assert "and the embedded stack has 2.51.0; serve it with the vLLM image" in str(caught.value)
    assert caught.value.exit_code == 2


def test_doctor_says_which_triton_cannot_serve_it(done: Converted, tmp_path: Path) -> None:
    """Of the embedded stack; without one, the image of the pin is what serves it."""
    nowhere = Subject(state=tmp_path, environment={}, bundle=done.bundle.folder)
    assert [found.status for found in check_bundle(nowhere)] == ["ok"]
    stack = StackRecord(Ports(1, 2, 3, 4), "access", "secret")
    [found] = check_bundle(replace(nowhere, record=stack))
    assert found.status == "failure"
    assert "needs Triton 2.53.0 or newer (release 24.12)" in found.why


def test_a_triton_without_a_controller_is_not_laid_out_for(done: Converted, tmp_path: Path) -> None:
    command = ["repository", str(done.bundle.folder), "--output", str(tmp_path / "plain")]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 2
    assert "text-generation is served in pieces" in " ".join(ran.output.split())
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "int8"}, "'vllm' has no precision 'int8'; use fp32 or bf16 or fp16"),
        ({"task": "text-classification"}, "vllm serves --task text-generation alone"),
        ({"task": None, "engine": "openvino", "compare": ("openvino", "vllm")}, "engine vllm"),
        ({"compare": ("vllm",)}, "--compare is not for it"),
        ({"engine_parameters": {"num_kv_blocks": "64"}}, "unknown to engine vllm; there are gpu_"),
        ({"engine_parameters": {"max_num_seqs": "0"}}, "a whole number from 1 to 4096, got '0'"),
    ],
)
def test_what_vllm_cannot_have_is_refused_before_any_work(
    changes: dict[str, Any], said: str, model: Path, tmp_path: Path
) -> None:
    steps: list[str] = []
    with pytest.raises(ConversionRefused) as caught:
        convert(asked(model, **changes), tmp_path / "b", lambda step, detail: steps.append(step))
    assert said in str(caught.value)
    assert set(steps) <= {"open"}
    assert not (tmp_path / "b").exists()


def broken(model: Path, folder: Path, *, pickles: bool = False) -> Path:
    """A copy without its weights, or with pickled shards in their place."""
    target = folder / "broken"
    shutil.copytree(model, target)
    (target / "model.safetensors").unlink()
    (target / "pytorch_model.bin").unlink()
    if pickles:
        shards = {"lm_head.weight": "pytorch_model-00001-of-00001.bin"}
        (target / "pytorch_model-00001-of-00001.bin").write_bytes(pickle.dumps({}))
        (target / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    return target


@pytest.mark.parametrize("allowed", [False, True])
def test_pickled_shards_are_refused_also_where_pickles_are_allowed(
    model: Path, tmp_path: Path, allowed: bool
) -> None:
    folder = broken(model, tmp_path, pickles=True)
    with pytest.raises(ConversionRefused) as caught:
        convert(asked(folder, allow_pickle=allowed), tmp_path / "bundle", quiet)
    wanted = "save them so: AutoModelForCausalLM" if allowed else "is a pickle: reading it runs"
    assert wanted in str(caught.value)


def test_an_index_that_leads_out_of_the_folder_is_refused(model: Path, tmp_path: Path) -> None:
    folder = broken(model, tmp_path)
    index = folder / "model.safetensors.index.json"
    outside = "names '{}', which is no safetensors"
    for name, said in (
        ("../model.safetensors", outside), ("code.py", outside),
        ("missing.safetensors", "the weights '{}' are not there"),
    ):  # fmt: skip
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
        with pytest.raises(ConversionRefused, match=said.format(name)):
            convert(asked(folder), tmp_path / "bundle", quiet)


def test_quantized_weights_are_refused(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionRefused, match="convert the model that they were made of"):
        convert(asked(folder), tmp_path / "bundle", quiet)


def test_shards_go_along_with_their_index(model: Path, tmp_path: Path) -> None:
    import transformers

    folder = tmp_path / "shards"
    loader: Any = transformers.AutoModelForCausalLM
    loader.from_pretrained(model, use_safetensors=True).save_pretrained(
        folder, max_shard_size="100KB"
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, folder / name)
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 1
    bundle = convert(asked(folder, max_length=64), tmp_path / "bundle", quiet).bundle
    kept = {path.name for path in bundle.model_folder.iterdir()}
    assert {*shards, "model.safetensors.index.json"} <= kept
