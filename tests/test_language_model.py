"""A small language model converted whole: parity with transformers, and what the bundle holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import FalconConfig

from preprocess.generation.detokenizer import Detokenizer
from preprocess.generation.request import TextTask, read_wanted
from tests.continuations import PRECISIONS, reports
from tests.language_models import FAMILIES, POSITIONS, WINDOW, save_language_model
from transformer_serving.contract.generation import Options
from transformer_serving.contract.heads import GENERATION
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.language_model import open_language_model_engine
from transformer_serving.desk.builders.table import ENGINES
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.bundle.writer import renew_bundle
from transformer_serving.desk.conversion import language_model
from transformer_serving.desk.conversion.encoder import Converted, ConvertRequest, convert
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.export import language_model as exporter
from transformer_serving.desk.export.attention import Attention
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.continuations import (
    TOLERANCES,
    ContinuationReport,
    Reference,
)
from transformer_serving.desk.parity.golden_continuation import (
    GoldenContinuation,
    golden_continuations,
)
from transformer_serving.desk.source import language_model as language_model_source
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.engine.model_config import from_text
from transformer_serving.engine.proof.greedy import Asked
from transformer_serving.engine.proof.greedy_set import GreedyTolerance, read_greedy_set

pytestmark = pytest.mark.slow
BY_HAND = (pytest.mark.long, pytest.mark.by_hand)
NEO = "gpt_neo"


def quiet(step: str, detail: str) -> None:
    """No progress."""


def converted(
    family: str, folder: Path, precision: str = "fp32", penalty: float | None = None
) -> Converted:
    model = save_language_model(family, folder / "model")
    if penalty is not None:
        defaults = model / "generation_config.json"
        said = json.loads(defaults.read_text("utf-8"))
        defaults.write_text(json.dumps({**said, "repetition_penalty": penalty}), "utf-8")
    request = ConvertRequest(str(model), task=GENERATION, precision=precision, name=family)
    return convert(request, folder / "bundle", quiet)


def answer_of_the_engine(bundle: Bundle) -> str:
    """To the golden request, read as preprocess reads it."""
    endpoint, folder = bundle.endpoint, bundle.model_folder
    assert endpoint.generation is not None
    request = bundle.manifest.golden.request
    wanted = read_wanted(request, TextTask(endpoint.generation), endpoint.limits).parameters
    assert wanted.max_new_tokens is not None
    config = from_text((folder / "config.pbtxt").read_text("utf-8"))
    files = EngineFiles(
        "openvino",
        bundle.manifest.precision,
        (folder / "openvino_model.xml",),
        parameters={name: value.string_value for name, value in config.parameters.items()},
    )
    tokenizer = Tokenizer.from_file(str(bundle.folder / "tokenizer.json"))
    prompt = tuple(tokenizer.encode(request["text"]).ids)
    eos_ids = endpoint.generation.eos_ids
    options = Options(wanted.max_new_tokens, eos_ids, wanted.sampling, wanted.seed)
    with open_language_model_engine(files) as engine:
        [found] = engine([Asked(prompt, options)])
    detokenizer = Detokenizer(tokenizer, prompt)
    new = [token for token in found.ids if token not in eos_ids]
    return "".join([request["text"], *map(detokenizer.step, new), detokenizer.rest()])


@pytest.fixture(scope="module")
def neo(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """GPT-Neo: of its two layers one sees no further than WINDOW tokens."""
    return converted(NEO, tmp_path_factory.mktemp("neo"))


def test_tokens_are_transformers_past_the_window_too(neo: Converted) -> None:
    report = neo.parity
    assert isinstance(report, ContinuationReport)
    assert report.fault is None
    assert report.equal_tokens == report.tokens
    assert report.worst.batch >= 1
    assert report.longest_tokens == POSITIONS - 24 > WINDOW
    rows = read_greedy_set((neo.bundle.model_folder / "parity.json").read_bytes()).rows
    assert {1, WINDOW + 19, 300} <= {len(row.prompt) for row in rows}
    assert {row.repetition_penalty for row in rows} == {1.0, 1.3}
    stopped = [row for row in rows if row.eos_ids]
    assert stopped
    assert all(row.continuation[-1] in row.eos_ids for row in stopped)


def test_the_bundle_is_one_like_the_others(neo: Converted) -> None:
    bundle = open_bundle(neo.bundle.folder)
    endpoint, manifest = bundle.endpoint, bundle.manifest
    assert (manifest.task, manifest.engine, manifest.precision) == (GENERATION, "openvino", "fp32")
    names = {entry.path for entry in manifest.files}
    assert {
        "model/openvino_model.xml",
        "model/openvino_model.bin",
        "model/config.json",
        "model/generation_config.json",
        "model/parity.json",
        "tokenizer.json",
        "preprocess.py",
    } <= names
    assert endpoint.generation is not None
    assert endpoint.generation.max_positions == POSITIONS
    assert endpoint.generation.special_tokens["eos_token"] == "</s>"
    assert manifest.tools["openvino-genai"] != "not installed"
    golden = manifest.golden
    assert golden.request["parameters"] == {"do_sample": False, "max_new_tokens": 8}
    assert golden.answer["text"].startswith(golden.request["text"])
    assert len(golden.answer["text"]) > len(golden.request["text"])
    assert endpoint.recorded is not None
    assert endpoint.recorded.answer == golden.answer


def test_triton_is_told_what_the_backend_needs(neo: Converted) -> None:
    config = from_text((neo.bundle.model_folder / "config.pbtxt").read_text("utf-8"))
    assert config.backend == "openvino_generate"
    assert config.max_batch_size == 0
    assert config.model_transaction_policy.decoupled
    assert [tensor.name for tensor in config.input] == ["input_ids", "options"]
    assert [tensor.name for tensor in config.output] == ["token_ids", "logprobs", "state"]
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    assert parameters["max_positions"] == str(POSITIONS)
    # 64 whole sequences, which take less than the gigabyte.
    assert parameters["num_kv_blocks"] == str(POSITIONS // 32 * 64)
    line = " ".join(add_arguments(neo.bundle, "writer", "some-id"))
    assert "--input-type int32 uint8" in line
    assert 'backend="openvino_generate"' in line


def test_a_bundle_can_be_renewed(neo: Converted, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in neo.bundle.folder.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(neo.bundle.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    renewed: Bundle = renew_bundle(copy)
    assert renewed.manifest.bundle_version == neo.bundle.manifest.bundle_version
    assert (copy / "model/parity.json").read_bytes() == (
        neo.bundle.model_folder / "parity.json"
    ).read_bytes()


def test_lesser_precisions_are_near_and_say_how_near(tmp_path: Path) -> None:
    """Of one export, and without a window, as `make language-models` asks them."""
    found = dict(zip(PRECISIONS, reports("llama", tmp_path), strict=True))
    for name, report in found.items():
        assert (report.precision, report.fault) == (name, None)
        assert report.equal_tokens / report.tokens > 0.9
    assert found["fp32"].equal_tokens == found["fp32"].tokens
    differences = [found[name].largest_difference for name in PRECISIONS]
    assert differences == sorted(differences)
    sizes = {name: (tmp_path / name / "openvino_model.bin").stat().st_size for name in PRECISIONS}
    assert sizes["int8"] < sizes["bf16"] / 2


def test_the_golden_answer_is_the_finished_engines(tmp_path: Path) -> None:
    """Of this model the one text that has no broken character has a choice so close that bf16 takes
    the other token, which parity lets it."""
    model = save_language_model("qwen2", tmp_path / "model")
    request = ConvertRequest(str(model), task=GENERATION, precision="bf16", max_length=64)
    bundle = convert(request, tmp_path / "bundle", quiet).bundle
    assert bundle.manifest.precision == "bf16"
    assert answer_of_the_engine(bundle) == bundle.manifest.golden.answer["text"]


def test_a_golden_continuation_goes_past_ends_that_come_too_early(tmp_path: Path) -> None:
    """As the endpoint's own requests do where the model's file has a least number of tokens."""
    model = save_language_model("llama", tmp_path / "model")
    defaults = model / "generation_config.json"
    said = json.loads(defaults.read_text("utf-8"))

    def first(**fields: Any) -> GoldenContinuation:
        defaults.write_text(json.dumps({**said, **fields}), "utf-8")
        source = open_language_model(str(model))
        return golden_continuations(source, Reference(source))[0]

    end = first().row.continuation[0]
    assert len(first(eos_token_id=end).row.continuation) == 1
    whole = first(eos_token_id=end, min_new_tokens=100)
    assert len(whole.row.continuation) == whole.new_tokens
    assert whole.asked.options.min_new_tokens == whole.new_tokens


def test_an_engine_that_can_answer_no_golden_request_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model, "continued_alike", lambda found, engine: [])
    model = save_language_model("llama", tmp_path / "model")
    request = ConvertRequest(str(model), task=GENERATION, precision="fp32", max_length=32)
    with pytest.raises(ConversionRefused, match="it goes on otherwise behind each of the 6 texts"):
        convert(request, tmp_path / "bundle", quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.long
def test_auto_takes_the_next_safer_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLERANCES, "bf16", GreedyTolerance(1.0, 1e-9, 1e-9))
    row = replace(ENGINES["openvino"], fastest=lambda: "bf16")
    monkeypatch.setitem(ENGINES, "openvino", row)
    done = converted("gpt2", tmp_path, "auto")
    assert done.bundle.manifest.precision == "fp32"
    [line] = done.refused
    assert line.startswith("bf16 does not continue as transformers.generate does: a prompt of")


@pytest.mark.parametrize("engine", ["openvino", "vllm"])
def test_too_few_positions_for_a_golden_request_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    model = save_language_model("llama", tmp_path / "model")
    request = ConvertRequest(
        str(model), task=GENERATION, engine=engine, precision="fp32", max_length=2
    )
    steps: list[str] = []
    with pytest.raises(ConversionRefused, match="--max-length is too small .* at least") as refused:
        convert(request, tmp_path / "bundle", lambda step, _: steps.append(step))
    assert not {"export", "build"} & set(steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    least = int(str(refused.value).rsplit(" ", 1)[-1])
    with pytest.raises(ConversionRefused, match=f"at least {least}"):
        convert(replace(request, max_length=least - 1), tmp_path / "bundle", quiet)
    # As few as an endpoint may have without being asked to.
    monkeypatch.setattr(language_model_source, "LONGEST_UNASKED", least)
    done = convert(replace(request, max_length=None), tmp_path / "bundle", quiet)
    assert done.bundle.endpoint.tokens.max_length == least
    assert done.bundle.manifest.golden.answer["text"]
    [remark] = done.remarks
    assert f"of up to {least} tokens, the model up to" in remark


def test_an_export_that_is_wrong_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that sees one token too few of its window, as an off-by-one would."""
    from transformer_serving.desk.export.attention import Masks

    whole: Callable[[Masks, int | None], object] = Masks.of
    monkeypatch.setattr(Masks, "of", lambda self, window: whole(self, window and window - 1))
    with pytest.raises(ConversionRefused, match="fp32 does not continue as transformers.generate"):
        converted("mistral", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_window_that_layers_leave_to_their_mask_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the families with experts do in transformers 5.2, which cannot be exported yet."""
    whole = Attention.interface
    monkeypatch.setattr(
        Attention, "interface",
        lambda self, *given, sliding_window=None, **named: whole(self, *given, **named),
    )  # fmt: skip
    folder = str(save_language_model("mistral", tmp_path / "model"))
    said = f"their sliding window of {WINDOW} tokens; --max-length {WINDOW} needs none"
    with pytest.raises(ConversionRefused, match=said):
        exporter.export_language_model(open_language_model(folder))
    exporter.export_language_model(open_language_model(folder, max_length=WINDOW))


def test_a_window_of_a_family_that_has_none_is_passed_over(tmp_path: Path) -> None:
    folder = save_language_model("llama", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window": WINDOW}))
    exporter.export_language_model(open_language_model(str(folder)))


@pytest.mark.parametrize(
    "fields",
    [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ],
)
def test_scores_are_scaled_as_gpt2s_own_attention_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, bool]
) -> None:
    """transformers' default attention does not, and says nothing."""
    monkeypatch.setitem(FAMILIES, "gpt2", partial(FAMILIES["gpt2"], **fields))
    report = converted("gpt2", tmp_path).parity
    assert isinstance(report, ContinuationReport)
    assert report.equal_tokens == report.tokens
    source = open_language_model(str(tmp_path / "model"))
    prompt = read_greedy_set((tmp_path / "bundle/model/parity.json").read_bytes()).rows[5].prompt
    own, default, reference = (
        model(torch.tensor([prompt])).logits
        for model in (
            exporter.load_language_model(source, "eager"),
            exporter.load_language_model(source, "sdpa"),
            exporter.load_language_model(source),
        )
    )
    assert torch.equal(reference, own)
    assert (default - own).abs().max() > 0.1


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    folder = save_language_model("llama", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ConversionRefused, match="weights of .* parts of 'model' are missing"):
        exporter.export_language_model(open_language_model(str(folder)))


def test_layers_that_choose_their_attention_by_name_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falcon: Callable[..., FalconConfig] = partial(
        FalconConfig, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=POSITIONS,
    )  # fmt: skip
    monkeypatch.setitem(FAMILIES, "falcon", falcon)
    folder = save_language_model("falcon", tmp_path / "model")
    said = "'falcon' cannot be turned into .* do not take attention from outside"
    with pytest.raises(ConversionRefused, match=said):
        exporter.export_language_model(open_language_model(str(folder)))


def test_other_engines_and_comparisons_are_refused(tmp_path: Path) -> None:
    request = ConvertRequest("gpt2", task=GENERATION, engine="onnxruntime")
    for one in (request, replace(request, engine="openvino", compare=("openvino",))):
        with pytest.raises(ConversionRefused, match="--engine openvino or vllm, and --compare"):
            convert(one, tmp_path / "bundle", quiet)


# What `neo` is, the tests above have asked.
OTHERS = [
    pytest.param(family, precision, marks=() if precision == "fp32" else BY_HAND)
    for family in FAMILIES
    for precision in ("fp32", "bf16", "int8")
    if (family, precision) != (NEO, "fp32")
]


@pytest.mark.parametrize(("family", "precision"), OTHERS)
def test_every_other_one_passes(family: str, precision: str, tmp_path: Path) -> None:
    # Without it opt would go on with a word that it has said.
    done = converted(family, tmp_path, precision, penalty=2.0)
    assert isinstance(done.parity, ContinuationReport)
    assert done.parity.worst.batch >= 1
    assert answer_of_the_engine(done.bundle) == done.bundle.manifest.golden.answer["text"]
