"""Parity refuses planted faults, and names the worst case without showing a text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from transformers import (
    BertForSequenceClassification,
    BertForTokenClassification,
    FNetConfig,
    FNetForMaskedLM,
    FNetForSequenceClassification,
)

from tests.families import save_model
from tests.kept_graphs import KeptGraphs
from tests.tiny_models import (
    POSITIONS,
    bert_config,
    save_classifier,
    save_sentence_model,
    save_tokenizer,
)
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import open_engine
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.export.cleaning import clean_onnx
from transformer_serving.desk.export.endpoint_json import LIMITS, endpoint_of, tokens_of
from transformer_serving.desk.export.onnx import ExportedGraph, GraphTensors, export_onnx
from transformer_serving.desk.failure import ConversionRefused, PrecisionRefused
from transformer_serving.desk.parity import check as parity
from transformer_serving.desk.parity.bodies import golden_body, parity_bodies
from transformer_serving.desk.parity.check import (
    TOLERANCES,
    ParityReport,
    WorstCase,
    choose,
    compare,
    prepare_case,
    refuse_when_over,
)
from transformer_serving.desk.parity.distance import distance
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.parity.reference import reference_answers
from transformer_serving.desk.source.model import open_source
from transformer_serving.engine.proof.parity_set import read_parity_set


class Model:
    """One exported model, its requests and the reference's answers, made once for all tests."""

    def __init__(self, folder: Path, kept: KeptGraphs) -> None:
        self.folder = folder
        source = open_source(str(save_classifier(folder)))
        graph = kept.graph(source, folder / "graph")
        self.graph = graph.path
        endpoint = endpoint_of(source, graph, tokens_of(source, None, (8, 16)), LIMITS)
        self.case = prepare_case(source, endpoint)

    def report(self, graph: Path | None = None, **changes: Any) -> ParityReport:
        files = EngineFiles("onnxruntime", "fp32", (graph or self.graph,))
        return compare(replace(self.case, **changes), files)


@pytest.fixture(scope="module")
def model(kept_graphs: KeptGraphs, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("case"), kept_graphs)


def edited(model: Model, name: str, edit: Any) -> Path:
    loaded = onnx.load(str(model.graph))
    edit(loaded.graph)
    path = model.folder / f"{name}.onnx"
    onnx.save(loaded, str(path))
    return path


def test_the_true_graph_passes(model: Model) -> None:
    report = model.report()
    refuse_when_over(report)
    assert report.largest_difference < 1e-5


def test_one_changed_weight_is_refused(model: Model) -> None:
    def change(graph: Any) -> None:
        weights = {tensor.name: tensor for tensor in graph.initializer}
        weight = weights["parts.0.classifier.weight"]
        values = numpy_helper.to_array(weight).copy()
        values[0, 0] += 0.01
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    report = model.report(edited(model, "weight", change))
    with pytest.raises(ConversionRefused, match="other --engine"):
        refuse_when_over(report, model.case)


def test_a_dropped_mask_is_refused(model: Model) -> None:
    def ignore_mask(graph: Any) -> None:
        # The mask's readers get ones of the same shape instead: every token equals itself.
        same = onnx.helper.make_node("Equal", ["input_ids", "input_ids"], ["same"])
        ones = onnx.helper.make_node("Cast", ["same"], ["ones"], to=onnx.TensorProto.INT32)
        for node in graph.node:
            for at, name in enumerate(node.input):
                if name == "attention_mask":
                    node.input[at] = "ones"
        graph.node.insert(0, ones)
        graph.node.insert(0, same)

    report = model.report(edited(model, "mask", ignore_mask))
    assert report.largest_difference > TOLERANCES["fp32"].difference
    with pytest.raises(ConversionRefused, match=r"text \d+ with \d+ tokens in a batch of \d+"):
        refuse_when_over(report)


@pytest.mark.parametrize("head", [FNetForSequenceClassification, FNetForMaskedLM])
def test_a_model_that_does_not_heed_its_mask_is_told_so_and_no_other_engine(
    head: Any, tmp_path: Path
) -> None:
    """FNet mixes all tokens of a row by a Fourier transform, padding included; also of a text that
    fills the longest length.
    """
    config = FNetConfig(
        vocab_size=120, hidden_size=32, num_hidden_layers=1, intermediate_size=48,
        max_position_embeddings=POSITIONS, num_labels=3, initializer_range=0.4,
    )  # fmt: skip
    torch.manual_seed(7)
    head(config).save_pretrained(str(tmp_path / "model"))
    save_tokenizer(tmp_path / "model")
    request = ConvertRequest(
        str(tmp_path / "model"), engine="onnxruntime", precision="fp32", max_length=17
    )
    with pytest.raises(ConversionRefused, match="does not answer as transformers") as refused:
        convert(request, tmp_path / "bundle", lambda step, detail: None)
    assert "when a text is padded: it does not heed its attention mask" in str(refused.value)
    assert "try the other" not in str(refused.value)


def test_another_padding_id_passes_because_the_mask_covers_it(model: Model) -> None:
    endpoint = model.case.endpoint
    other = replace(endpoint, tokens=replace(endpoint.tokens, pad_id=5))
    refuse_when_over(model.report(endpoint=other))


def test_swapped_token_types_are_refused(model: Model) -> None:
    endpoint = model.case.endpoint
    ids, types, mask = endpoint.inputs
    swapped = (ids, replace(types, role="attention_mask"), replace(mask, role="token_type_ids"))
    with pytest.raises(ConversionRefused):
        refuse_when_over(model.report(endpoint=replace(endpoint, inputs=swapped)))


def test_special_tokens_taken_for_words_are_refused(model: Model) -> None:
    endpoint = model.case.endpoint
    assert any(
        all(name in body["text"] for name in ("[CLS]", "[SEP]", "[MASK]"))
        for body in model.case.bodies
    )
    split = replace(endpoint.tokens, split_special_tokens=True)
    # The graph computes what the model does, of other tokens.
    with pytest.raises(ConversionRefused, match="largest difference") as refused:
        refuse_when_over(model.report(endpoint=replace(endpoint, tokens=split)))
    assert "transformers.pipeline reads some requests otherwise: compare" in str(refused.value)
    assert "other --engine" not in str(refused.value)


def test_labels_in_another_order_are_refused(model: Model) -> None:
    endpoint = model.case.endpoint
    assert endpoint.classification is not None
    labels = endpoint.classification.labels[::-1]
    classification = replace(endpoint.classification, labels=labels)
    report = model.report(endpoint=replace(endpoint, classification=classification))
    assert report.label_agreement is not None
    assert report.label_agreement < 1.0
    with pytest.raises(ConversionRefused, match="labels agree on"):
        refuse_when_over(report)


CLASSIFIER = GraphTensors(
    ("input_ids", "token_type_ids", "attention_mask"), (OutputTensor("output", "FP32", (3,)),)
)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    source = open_source(str(save_classifier(tmp_path, vocab_size=20)))
    endpoint = endpoint_of(source, CLASSIFIER, tokens_of(source, None, ()), LIMITS)
    assert endpoint.tokens.known_ids == 20
    with pytest.raises(ConversionRefused, match="more pieces than the model's 20$"):
        prepare_case(source, endpoint)


def test_a_reference_that_cannot_answer_is_refused(model: Model, tmp_path: Path) -> None:
    source = open_source(str(save_classifier(tmp_path, vocab_size=20)))
    with pytest.raises(
        ConversionRefused, match="cannot answer with this model .IndexError.* 20, or"
    ):
        prepare_case(source, model.case.endpoint)


def test_what_else_the_endpoint_refuses_is_told_in_its_words(model: Model) -> None:
    endpoint = replace(model.case.endpoint, limits=replace(LIMITS, max_tokens=5))
    with pytest.raises(ConversionRefused, match="none that this endpoint answers: the texts have"):
        prepare_case(open_source(str(model.folder)), endpoint)


def test_not_a_number_is_refused(model: Model) -> None:
    expected = list(model.case.expected)
    expected[3] = [{**row, "score": float("nan")} for row in expected[3]]
    report = model.report(expected=expected)
    assert report.largest_difference == float("inf")
    with pytest.raises(ConversionRefused):
        refuse_when_over(report)


def test_the_fastest_precision_that_passes_is_chosen(model: Model) -> None:
    """The engine of the faster precision is broken here; the safe one is the true graph."""

    def change(graph: Any) -> None:
        weights = {tensor.name: tensor for tensor in graph.initializer}
        weight = weights["parts.0.classifier.weight"]
        values = numpy_helper.to_array(weight) * np.float32(-3.0)
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    graphs = {"int8": edited(model, "int8", change), "fp32": model.graph}

    def build(precision: str) -> EngineFiles:
        return EngineFiles("onnxruntime", precision, (graphs[precision],))

    said: list[str] = []
    files, report = choose(("int8", "fp32"), build, model.case, said.append)
    assert (files.precision, report.precision) == ("fp32", "fp32")
    assert "int8 does not answer as transformers.pipeline does" in said[0]
    assert choose(("fp32",), build, model.case, said.append)[1] == report
    with pytest.raises(ConversionRefused, match="--precision fp32"):
        choose(("int8",), build, model.case, said.append)


@pytest.mark.parametrize("step", ["build", "open", "call"])
def test_a_precision_that_is_not_made_or_does_not_run_is_passed_over(
    model: Model, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fault = RuntimeError("bf16 is not implemented here\nand where")

    def build(precision: str) -> EngineFiles:
        if (precision, step) == ("bf16", "build"):
            raise PrecisionRefused("engine onnxruntime cannot be built in bf16")
        return EngineFiles("onnxruntime", precision, (model.graph,))

    def opened(files: EngineFiles) -> Any:
        def fail(_tensors: object) -> None:
            raise fault

        if files.precision == "bf16" and step == "open":
            raise fault
        return fail if files.precision == "bf16" else open_engine(files)

    monkeypatch.setattr(parity, "open_engine", opened)
    said: list[str] = []
    files, _ = choose(("bf16", "fp32"), build, model.case, said.append)
    assert files.precision == "fp32"
    assert len(said) == 1
    assert said[0].endswith("; trying the next safer precision")
    if step != "build":
        assert "onnxruntime does not run in bf16 here (RuntimeError: bf16 is not" in said[0]
    with pytest.raises(ConversionRefused, match="engine onnxruntime .* bf16"):
        choose(("bf16",), build, model.case, said.append)


def test_what_is_of_the_model_is_not_tried_in_another_precision(model: Model) -> None:
    asked: list[str] = []

    def build(precision: str) -> EngineFiles:
        asked.append(precision)
        raise ConversionRefused("the model cannot be exported")

    with pytest.raises(ConversionRefused, match="cannot be exported"):
        choose(("bf16", "fp32"), build, model.case, asked.append)
    assert asked == ["bf16"]


def test_the_next_safer_precision_is_named() -> None:
    report = ParityReport(
        reference="sentence-transformers",
        precision="bf16",
        texts=4,
        longest_tokens=9,
        largest_difference=0.001,
        tolerance=0.03,
        label_agreement=None,
        lowest_cosine=0.98,
        worst=WorstCase(text=2, tokens=7, batch=8),
    )
    with pytest.raises(ConversionRefused, match="--precision fp32") as refused:
        refuse_when_over(report)
    assert "text 2 with 7 tokens in a batch of 8" in str(refused.value)


def wrapped(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    """Every engine that parity opens answers through `spoil`(outputs, tensors by name)."""

    def opened(files: EngineFiles) -> Any:
        call = open_engine(files)
        return lambda tensors: spoil(call(tensors), {one.name: one.array for one in tensors})

    monkeypatch.setattr(parity, "open_engine", opened)


def wrong_where(condition: Any) -> Any:
    def spoil(outputs: Any, tensors: Any) -> Any:
        batch, length = tensors["input_ids"].shape
        return [-array if condition(length, batch) else array for array in outputs]

    return spoil


@pytest.mark.parametrize(
    ("condition", "place"),
    [
        (lambda length, batch: length == 24, "at 24 tokens, any batch: "),
        (lambda length, batch: batch == 2, "at every length in batches of 2: "),
        (lambda length, batch: (length, batch) == (16, 64), "at 16 tokens in batches of 64: "),
        (lambda length, batch: (length, batch) == (41, 1), "at 41 tokens alone: "),
    ],
    ids=["length", "batch", "both", "alone"],
)
def test_an_engine_that_is_wrong_at_one_shape_is_refused_and_the_shape_named(
    condition: Any, place: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped(monkeypatch, wrong_where(condition))
    report = model.report()
    assert report.shapes is not None
    with pytest.raises(ConversionRefused) as refused:
        refuse_when_over(report)
    assert f"; {place}" in str(refused.value)
    assert "where 0.999999 is allowed" in str(refused.value)


def test_a_fault_at_one_shape_makes_the_next_safer_precision_be_tried(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build(precision: str) -> EngineFiles:
        built.append(precision)
        return EngineFiles("onnxruntime", precision, (model.graph,))

    wrong = wrong_where(lambda length, batch: length == 24 and built[-1] == "bf16")
    wrapped(monkeypatch, wrong)
    said: list[str] = []
    files, report = choose(("bf16", "fp32"), build, model.case, said.append)
    assert files.precision == "fp32"
    assert report.shapes is not None
    assert report.shapes.fault is None
    assert len(said) == 1
    assert "at 24 tokens, any batch: cosine -1 where 0.9995 is allowed" in said[0]


def test_a_lost_mask_is_found_by_the_shapes_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shorter rows of padded batches, and every row that is shorter than its bucket."""
    call = open_engine(EngineFiles("onnxruntime", "fp32", (model.graph,)))

    def maskless(tensors: Any) -> Any:
        return call([replace(one, array=np.ones_like(one.array)) if "mask" in one.name else one
                     for one in tensors])  # fmt: skip

    tolerance = TOLERANCES["fp32"].of_shapes
    assert model.case.shapes.prove(call, "fp32", tolerance).fault is None
    fault = str(model.case.shapes.prove(maskless, "fp32", tolerance).fault)
    assert fault.startswith("at every length") or "lengths from" in fault


def test_every_bucket_and_head_size_and_their_neighbours_are_asked(model: Model) -> None:
    shapes = model.case.shapes
    heads = range(8, 49, 8)
    wanted = {size + step for size in (8, 16, 48, *heads) for step in (-1, 0, 1)} - {49}
    assert set(shapes.lengths) == wanted
    assert {row.tokens for row in shapes.parity_set.rows} >= wanted
    kept = shapes.kept("fp32", TOLERANCES["fp32"].of_shapes)
    assert [row.tokens for row in kept.rows] == [2, 7, 8, 9, 15, 16, 17, 47, 48]
    assert read_parity_set(kept.to_json().encode()).to_json() == kept.to_json()


def test_requests_cover_every_length_class_and_one_that_is_cut(model: Model) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(model.case.tokenizer_json)
    longest = model.case.endpoint.tokens.max_length
    lengths = [len(tokenizer.encode(body["text"]).ids) for body in model.case.bodies]
    assert max(lengths) > longest
    assert longest in lengths
    assert len(set(lengths)) > 12
    assert any("text_pair" in body for body in model.case.bodies)


_INFERENCE = ("entailment", "neutral", "contradiction")


@pytest.mark.parametrize(
    "written",
    [
        {"id2label": {at: f"LABEL_{at}" for at in range(3)},
         "label2id": {label: at for at, label in enumerate(_INFERENCE)}},
        {"id2label": dict(enumerate(_INFERENCE)), "label2id": None},
    ],
    ids=["other names", "no label2id"],
)  # fmt: skip
def test_zero_shot_asks_the_column_that_the_pipeline_asks(
    written: dict[str, Any], model: Model, tmp_path: Path
) -> None:
    folder, task = tmp_path / "model", "zero-shot-classification"
    shutil.copytree(model.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **written}))
    source = open_source(str(folder), task=task)
    endpoint = replace(model.case.endpoint, task=task, classification=source.classification)
    # Words that the tokenizer knows: of others every score is the same.
    body = {"text": "the train left early", "candidate_labels": ["snow", "piano", "ships"]}
    [wanted] = reference_answers(source, endpoint, [body])
    call = open_engine(EngineFiles("onnxruntime", "fp32", (model.graph,)))
    got = LocalEndpoint(endpoint, model.case.tokenizer_json, call).answer(body)
    far = distance(task, wanted, got, 1e-4)
    assert far.difference < 1e-4
    assert far.agreement == 1.0
    assert max(wanted["scores"]) - min(wanted["scores"]) > 0.01


def spoken(text: str, score: float, start: int = 0) -> dict[str, Any]:
    return {"answer": text, "score": score, "start": start, "end": start + len(text)}


@pytest.mark.parametrize(
    ("got", "difference", "agreement"),
    [
        (spoken("snow", 0.3), 0.0, 1.0),
        # Answers that read the same are one, wherever they stand.
        (spoken("Snow", 0.3, start=40), 0.0, 1.0),
        (spoken("the snow", 0.3), 0.0, 1.0),
        (spoken("an old piano", 0.3), 0.0, 0.0),
        (spoken("tea", 0.3), 0.0, 0.0),
        (spoken("an old piano", 0.95), 0.65, 0.0),
        ([], float("inf"), 0.0),
    ],
)
def test_another_answer_of_the_same_score_is_another_decision(
    got: Any, difference: float, agreement: float
) -> None:
    """The second best is as good within what is allowed; the third and one of none are not."""
    expected = [spoken("snow", 0.3), spoken("the snow", 0.29995), spoken("tea", 0.1)]
    found = distance("question-answering", expected, got, 1e-4)
    assert found.difference == pytest.approx(difference)
    assert found.agreement == agreement


def test_the_reference_of_an_answer_says_what_comes_behind_it(tmp_path: Path) -> None:
    source = open_source(
        str(save_model("bert", tmp_path, "ForQuestionAnswering")), task="question-answering"
    )
    graph = GraphTensors((), (OutputTensor("output", "FP32", (-1, 2)),))
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ()), LIMITS)
    [first, second] = parity_bodies(endpoint, ["The train left early because of snow."])
    [plain, ranked] = reference_answers(source, endpoint, [first, second])
    for rows in (plain, ranked):
        scores = [row["score"] for row in rows]
        assert len({row["answer"].lower() for row in rows}) == len(rows) > 2
        # The first one is asked for alone, and nothing is added to its score.
        assert scores[1:] == sorted(scores[1:], reverse=True)
    rolled = distance("question-answering", ranked, {**ranked[0], **spoken("no", scores[0])}, 1e-4)
    assert (rolled.difference, rolled.agreement) == (0.0, 0.0)


def test_tokens_without_a_name_are_compared_too(tmp_path: Path) -> None:
    """A model that finds names finds none in the fixed texts: its answers there are empty lists."""
    torch.manual_seed(7)
    labels = {0: "O", 1: "B-PER", 2: "I-PER"}
    config = bert_config(id2label=labels, label2id={v: k for k, v in labels.items()})
    model = BertForTokenClassification(config)
    with torch.no_grad():
        model.classifier.bias[0] += 6.0
    model.save_pretrained(str(tmp_path))
    save_tokenizer(tmp_path)
    source = open_source(str(tmp_path))
    graph = export_onnx(source, tmp_path / "graph.onnx")
    endpoint = endpoint_of(source, graph, tokens_of(source, None, (8, 16)), LIMITS)
    case = prepare_case(source, endpoint)
    assert {row["entity"] for answer in case.expected for row in answer} == {"O"}
    files = EngineFiles("onnxruntime", "fp32", (graph.path,))
    refuse_when_over(compare(case, files))
    tokenizer = json.loads(case.tokenizer_json)
    words = {word: token for word, token in tokenizer["model"]["vocab"].items() if word[0] != "["}
    moved = dict(zip(words, [*list(words.values())[1:], next(iter(words.values()))], strict=True))
    tokenizer["model"]["vocab"].update(moved)
    wrong = replace(case, tokenizer_json=json.dumps(tokenizer).encode())
    with pytest.raises(ConversionRefused, match="largest difference"):
        refuse_when_over(compare(wrong, files))
    golden = golden_body(endpoint)
    local = LocalEndpoint(endpoint, case.tokenizer_json, open_engine(files))
    assert len(local.answer(golden)) > 10


@pytest.mark.parametrize(
    ("behind", "agreement"), [(0.499996, 1.0), (0.48, 0.0)], ids=["near", "far"]
)
def test_either_of_two_near_labels_is_right_of_a_text_and_of_a_token(
    behind: float, agreement: float
) -> None:
    scores = {"PER": 0.500004, "ORG": behind}
    rows = [{"label": label, "score": score} for label, score in scores.items()]
    got = [{"label": "ORG", "score": 0.500001}, {"label": "PER", "score": 0.499999}]
    text = distance("text-classification", rows, got, 1e-2)
    place = {"index": 1, "start": 0, "end": 3}
    entity = [{"entity": "PER", "score": scores["PER"], **place, "scores": scores}]
    found = [{"entity": "ORG", "score": 0.500001, **place}]
    token = distance("token-classification", entity, found, 1e-2)
    assert text.agreement == token.agreement == agreement
    assert token.difference == pytest.approx(abs(0.500001 - behind))


def test_the_reference_of_a_token_says_the_score_of_each_label(tmp_path: Path) -> None:
    folder = save_model("bert", tmp_path, "ForTokenClassification")
    source = open_source(str(folder), task="token-classification")
    graph = GraphTensors((), (OutputTensor("output", "FP32", (-1, 2)),))
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ()), LIMITS)
    for body in parity_bodies(endpoint, ["The train left early because of snow. " * 20]):
        [answer] = reference_answers(source, endpoint, [body])
        assert answer
        for row in answer:
            best = max(row["scores"], key=row["scores"].__getitem__)
            assert (row["entity"], row["score"]) == (best, pytest.approx(row["scores"][best]))
            assert sum(row["scores"].values()) == pytest.approx(1.0, abs=1e-5)
    [grouped] = reference_answers(
        source, endpoint, [{"text": "tea", "parameters": {"aggregation_strategy": "simple"}}]
    )
    assert all("entity_group" in row for row in grouped)


def test_a_token_that_only_one_answer_has_is_another_decision() -> None:
    both = [
        {"entity": "PER", "score": 0.9, "index": at, "start": at, "end": at + 1,
         "scores": {"PER": 0.9, "O": 0.1}}
        for at in (1, 2)
    ]  # fmt: skip
    for expected, got in ((both, both[:1]), (both[:1], both)):
        found = distance("token-classification", expected, got, 1e-4)
        assert (found.difference, found.agreement) == (0.0, 0.5)


def without_a_limit(model: Path) -> Path:
    """As many tokenizers are: they say no longest text, and their pipelines cut none."""
    settings = model / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps({**values, "model_max_length": int(1e30)}))
    return model


_LONG = "the train left early because of snow and we waited in a small warm room " * 8


@pytest.mark.parametrize(
    ("task", "head", "asked"),
    [
        ("token-classification", "ForTokenClassification", {"parameters": {"ignore_labels": []}}),
        (
            "zero-shot-classification",
            "ForSequenceClassification",
            {"candidate_labels": ["travel", "music"]},
        ),
    ],
)
def test_a_text_that_the_reference_reads_to_its_end_is_not_cut(
    task: str, head: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    """DeBERTa's positions are relative: it reads longer texts than its config says."""
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    model = save_model("deberta-v3", tmp_path / "model", head, id2label=labels, num_labels=3)
    source = open_source(str(without_a_limit(model)), task=task)
    graph = export_onnx(source, tmp_path / "graph.onnx")
    clean_onnx(graph.path)
    endpoint = endpoint_of(source, graph, tokens_of(source, None, (16,)), LIMITS)
    files = EngineFiles("onnxruntime", "fp32", (graph.path,))
    case = prepare_case(source, endpoint)
    refuse_when_over(compare(case, files))
    assert case.shapes.parity_set.buckets[-1] == endpoint.tokens.max_length
    local = LocalEndpoint(endpoint, source.tokenizer.content, open_engine(files))
    with pytest.raises(ServingError, match="shorten it or send truncate") as caught:
        local.answer({"text": _LONG, **asked})
    assert (caught.value.kind.status, caught.value.limit) == (413, endpoint.tokens.max_length)
    assert local.answer({"text": _LONG, "truncate": True, **asked})
    # An endpoint that cuts there unasked is found.
    cutting = replace(endpoint, tokens=replace(endpoint.tokens, truncate=True))
    with pytest.raises(ConversionRefused):
        refuse_when_over(compare(prepare_case(source, cutting), files))


@pytest.mark.parametrize(
    ("task", "longest", "size"),
    [
        ("text-classification", 4, r", which has \d+"),
        # Its question alone is longer, or leaves too little room beside it.
        ("question-answering", 10, ""),
        ("question-answering", 16, ""),
        ("question-answering", 24, ""),
        ("zero-shot-classification", 6, ""),
    ],
)
def test_an_endpoint_too_short_for_a_fixed_request_is_refused_by_name(
    task: str, longest: int, size: str, model: Model, tmp_path: Path
) -> None:
    folder, graph = model.folder, CLASSIFIER
    if task == "question-answering":
        folder = save_model("bert", tmp_path / "model", "ForQuestionAnswering")
        graph = GraphTensors(CLASSIFIER.inputs, (OutputTensor("output", "FP32", (-1, 2)),))
    if task == "zero-shot-classification":
        labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
        head = "ForSequenceClassification"
        folder = save_model("bert", tmp_path / "model", head, id2label=labels, num_labels=3)
    source = open_source(str(folder), task=task)
    endpoint = endpoint_of(source, graph, tokens_of(source, longest, ()), LIMITS)
    said = f"at most {longest} tokens have no room for a fixed request{size}: name a longer --max-"
    with pytest.raises(ConversionRefused, match=said):
        prepare_case(source, endpoint)


@pytest.mark.parametrize("task", ["sentence-embedding", "rerank"])
def test_a_reference_that_cuts_earlier_is_refused(task: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if task == "rerank":
        BertForSequenceClassification(bert_config(num_labels=1)).save_pretrained(str(folder))
        save_tokenizer(folder)
    else:
        save_sentence_model(folder, tmp_path / "encoder", pooling="mean")
    source = open_source(str(folder), task=task)
    width = 1 if task == "rerank" else 32
    output = (OutputTensor("output", "FP32", (width,)),)
    graph = GraphTensors(("input_ids", "token_type_ids", "attention_mask"), output)
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ()), LIMITS)
    body = {"query": "tea", "texts": ["snow"]} if task == "rerank" else {"text": "tea"}
    assert reference_answers(source, endpoint, [body])
    longer = replace(endpoint, tokens=replace(endpoint.tokens, max_length=POSITIONS + 1))
    with pytest.raises(ConversionRefused, match=f"convert with --max-length {POSITIONS}"):
        reference_answers(source, longer, [body])


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    return save_sentence_model(folder / "model", folder / "encoder", pooling="mean")


@pytest.fixture(scope="module")
def graph_of_embedder(
    embedder: Path, kept_graphs: KeptGraphs, tmp_path_factory: pytest.TempPathFactory
) -> ExportedGraph:
    """Whatever it cuts its texts at."""
    source = open_source(str(embedder), task="rerank")
    return kept_graphs.graph(source, tmp_path_factory.mktemp("graph"))


def reranker(embedder: Path, folder: Path, **lengths: Any) -> Path:
    """The bi-encoder, but that it cuts its texts, or those of a side, at these lengths."""
    shutil.copytree(embedder, folder)
    settings = folder / "sentence_bert_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **lengths}))
    return folder


@pytest.mark.parametrize("name", ["query_length", "document_length"])
def test_a_reranker_whose_reference_cuts_one_side_earlier_is_refused(
    name: str, embedder: Path, tmp_path: Path
) -> None:
    source = open_source(str(reranker(embedder, tmp_path / "model", **{name: 20})), task="rerank")
    graph = GraphTensors(
        ("input_ids", "token_type_ids", "attention_mask"), (OutputTensor("output", "FP32", (32,)),)
    )
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ()), LIMITS)
    body = {"query": "tea", "texts": ["snow"]}
    with pytest.raises(ConversionRefused, match=rf"at 20 tokens by {name} .* --max-length 20, or"):
        reference_answers(source, endpoint, [body])
    for length in (20, 12):
        shorter = endpoint_of(source, graph, tokens_of(source, length, ()), LIMITS)
        assert reference_answers(source, shorter, [body])


@pytest.mark.parametrize("name", ["common", "text"])
def test_the_length_that_the_reference_tells_its_tokenizer_at_each_call_is_its_own(
    name: str, embedder: Path, tmp_path: Path
) -> None:
    told = {"processing_kwargs": {name: {"max_length": 24}}, "max_seq_length": 30}
    source = open_source(
        str(reranker(embedder, tmp_path / "model", **told)), task="sentence-embedding"
    )
    output = (OutputTensor("output", "FP32", (32,)),)
    graph = GraphTensors(("input_ids", "token_type_ids", "attention_mask"), output)
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ()), LIMITS)
    assert endpoint.tokens.max_length == 24
    assert reference_answers(source, endpoint, [{"text": "tea"}])
    longer = replace(endpoint, tokens=replace(endpoint.tokens, max_length=25))
    with pytest.raises(ConversionRefused, match="at 24 tokens, .* --max-length 24"):
        reference_answers(source, longer, [{"text": "tea"}])


@pytest.mark.parametrize(
    "lengths",
    [
        {},
        {"document_length": 20},
        {"document_length": POSITIONS, "max_seq_length": 24},
        {"processing_kwargs": {"text": {"max_length": 24}}},
    ],
)
def test_a_rerankers_long_documents_are_compared(
    lengths: dict[str, Any], embedder: Path, graph_of_embedder: ExportedGraph, tmp_path: Path
) -> None:
    """The endpoint's length is the reference's, by which each side is cut."""
    source = open_source(str(reranker(embedder, tmp_path / "model", **lengths)), task="rerank")
    graph = graph_of_embedder
    endpoint = endpoint_of(source, graph, tokens_of(source, 20, (8, 16)), LIMITS)
    case = prepare_case(source, endpoint)
    report = compare(case, EngineFiles("onnxruntime", "fp32", (graph.path,)))
    # A document that is read on behind the model's own end is another answer, and is seen.
    assert (report.largest_difference > 1e-3) is (lengths.get("document_length") == POSITIONS)
