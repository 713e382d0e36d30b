"""Engines that somebody else made: what their file says, what is asked for, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer

from tests.contract.onnx_files import PUTS, Put, field, onnx_bytes, outer_model
from tests.contract.plans import Plan, build
from tests.tiny_models import POSITIONS, save_encoder, save_older_layout, save_sentence_model
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import open_engine
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.signing import new_key
from transformer_serving.desk.cli import main
from transformer_serving.desk.export.onnx import export_onnx
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.own_engine import adoption, writer
from transformer_serving.desk.own_engine.adoption import ServedModel, tensors_of
from transformer_serving.desk.own_engine.tensors import EngineTensor, parse_tensor
from transformer_serving.desk.own_engine.writer import outer_weights
from transformer_serving.desk.parity.check import TOLERANCES
from transformer_serving.desk.parity.latency import processor
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.parity.shapes import ShapeCase, ShapeReport
from transformer_serving.desk.source.model import open_source
from transformer_serving.desk.source.tokenizer import read_tokenizer
from transformer_serving.desk.versions.lock import read_lock
from transformer_serving.engine.proof.parity_set import read_parity_set

TEXT = "the train left early"


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bundle", *arguments])


def made(tiny_classifier: Path, file: Path, target: Path, *more: str) -> Result:
    return run(
        "--from", str(file), "--tokenizer", str(tiny_classifier), "--task", "text-classification",
        "--text", TEXT, "--output", str(target), *more,
    )  # fmt: skip


def test_an_onnx_file_states_its_tensors(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    target = tmp_path / "own"
    file = tiny_bundle / "model" / "model.onnx"
    sizes = ("--batch", "1", "2", "8", "--seq-len", "8", "16", "40")
    done = made(tiny_classifier, file, target, *sizes, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    bundle, converted = open_bundle(target), open_bundle(tiny_bundle)
    assert bundle.endpoint.inputs == converted.endpoint.inputs
    assert bundle.endpoint.outputs == converted.endpoint.outputs
    assert bundle.endpoint.tokens.buckets == (*range(8, 33, 2), 36, 40)
    assert bundle.endpoint.limits.max_batch_size == 8
    assert bundle.endpoint.classification is not None
    assert bundle.endpoint.classification.labels == ("bad", "fair", "good")
    assert told["golden"]["request"] == {"text": TEXT}
    assert told["golden"]["answer"]["label"] in ("bad", "fair", "good")
    parity = bundle.manifest.parity
    assert parity["unverified"] == (
        "not compared with any reference: the engine was brought, not converted"
    )
    assert parity["shapes"]["fault"] is None
    carried = read_parity_set((target / "model" / "parity.json").read_bytes())
    assert carried.reference == f"the file itself, on {processor()}"
    assert carried.buckets == bundle.endpoint.tokens.buckets
    assert file.is_file()


def test_a_link_stays_and_leads_to_the_bundle(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "own")
    done = made(tiny_classifier, tiny_bundle / "model" / "model.onnx", link)
    assert done.exit_code == 0, done.output
    assert link.is_symlink()
    open_bundle(tmp_path / "disk" / "own")


def test_labels_and_roles_that_the_files_do_not_say(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    model = onnx.load(str(tiny_bundle / "model" / "model.onnx"))
    renamed = {"input_ids": "x", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    for tensor in model.graph.input:
        tensor.name = renamed[tensor.name]
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = renamed.get(name, name)
    onnx.save(model, str(tmp_path / "renamed.onnx"))
    bare = tmp_path / "tokenizer"
    shutil.copytree(tiny_classifier, bare)
    file, target = tmp_path / "renamed.onnx", tmp_path / "own"
    unnamed = made(bare, file, target)
    assert unnamed.exit_code == 2
    assert "input 'x' has no role; say --role x=ROLE" in unnamed.output
    assert not target.exists()
    done = made(bare, file, target, "--role", "x=input_ids", "--labels", "a, b, c")
    assert done.exit_code == 0, done.output
    bundle = open_bundle(target)
    assert bundle.endpoint.classification is not None
    assert bundle.endpoint.classification.labels == ("a", "b", "c")
    assert {one.name: one.role for one in bundle.endpoint.inputs} == {
        new: old for old, new in renamed.items()
    }
    wrong = made(bare, file, target, "--role", "x=input_ids", "--labels", "a,b")
    assert "the engine has 3 columns, and 2 labels were given" in wrong.output


@pytest.mark.parametrize("model_type", ["bert", None])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id2label": {"NEG": 0, "POS": 1, "N": 2}}, "'NEG'"),
        ({"id2label": ["bad", "fair", "good"]}, "id2label"),
        ({"problem_type": "multi_label"}, "problem_type"),
    ],
    ids=["swapped", "list", "problem type"],
)
def test_a_config_that_cannot_be_read_is_named_and_not_the_tokenizer(
    tiny_classifier: Path,
    tiny_bundle: Path,
    tmp_path: Path,
    fields: dict[str, Any],
    words: str,
    model_type: str | None,
) -> None:
    folder, file = tmp_path / "tokenizer", tiny_bundle / "model" / "model.onnx"
    shutil.copytree(tiny_classifier, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **fields}))
    done = made(folder, file, tmp_path / "own")
    refused(done, "the pinned transformers cannot read config.json (ValueError: ", words)
    assert not (tmp_path / "own").exists()


def test_a_brought_engine_is_padded_where_it_can_be(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Its head reads the first token, whatever side its tokenizer would pad for generating."""
    folder, file = tmp_path / "tokenizer", tiny_bundle / "model" / "model.onnx"
    shutil.copytree(tiny_classifier, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["padding_side"] = "left"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_tokenizer(folder).padding_side == "left"
    done = made(folder, file, tmp_path / "own")
    assert done.exit_code == 0, done.output
    bundle = open_bundle(tmp_path / "own")
    assert bundle.endpoint.tokens.padding_side == "right"
    plain = made(tiny_classifier, file, tmp_path / "plain", "--json")
    assert bundle.manifest.golden.answer == json.loads(plain.stdout)["golden"]["answer"]


def deaf_engine(heeding: Path, file: Path) -> Path:
    """The same engine with a mask of its own, which is ones."""
    model = onnx.load(str(heeding))
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[at] = "ones"
    same = onnx.helper.make_node("Equal", ["input_ids", "input_ids"], ["same"])
    ones = onnx.helper.make_node("Cast", ["same"], ["ones"], to=onnx.TensorProto.INT32)
    model.graph.node.insert(0, ones)
    model.graph.node.insert(0, same)
    onnx.save(model, str(file))
    return file


@pytest.mark.parametrize("text", [TEXT, "the train left early " * 20], ids=["short", "longest"])
def test_an_engine_that_does_not_heed_its_mask_is_refused(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path, text: str
) -> None:
    """Also by a golden text that no length of a call has room behind."""
    heeding = tiny_bundle / "model" / "model.onnx"
    asked = ("--text", json.dumps({"text": text, "truncate": True}))
    file = deaf_engine(heeding, tmp_path / "deaf.onnx")
    done = made(tiny_classifier, file, tmp_path / "own", *asked)
    refused(done, "padding changes what the engine gives by", "attention_mask")
    assert not (tmp_path / "own").exists()
    assert made(tiny_classifier, heeding, tmp_path / "own", *asked).exit_code == 0


def test_an_engine_without_a_parity_set_is_said_to_be_unproven(
    tiny_classifier: Path, tmp_path: Path
) -> None:
    plan = (plan_file(tmp_path), tmp_path / "own", *PLAN_TENSORS, "--answer", "{}")
    remark = "unproven where it is served: a plan cannot be run at the desk"
    assert made(tiny_classifier, *plan).stdout.splitlines()[0] == remark
    assert json.loads(made(tiny_classifier, *plan, "--json").stdout)["remarks"] == [remark]


PAIRS = {
    "rerank": {"query": TEXT, "texts": ["an old piano", "Snow and rain"]},
    "sentence-similarity": {
        "source_sentence": TEXT,
        "sentences": ["an old piano", "Snow and rain"],
    },
}


def summing_engine(file: Path, width: int, outputs: Sequence[str] = ("output",)) -> Path:
    """The sum of a table's rows, one for each token of a text: [texts, width]; the rows before
    that are the output "kept", [texts, tokens, width]."""
    from onnx import TensorProto, helper, numpy_helper

    table = np.random.default_rng(0).normal(size=(100, width)).astype(np.float32)
    constants = {"table": table, "last": np.array([2]), "tokens": np.array([1])}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["columns"]),
        helper.make_node("Mul", ["rows", "columns"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "tokens"], ["output"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    axes: dict[str, Sequence[str | int | None]] = {
        "output": ["texts", width],
        "kept": ["texts", "tokens", width],
    }
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes[name]) for name in outputs]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "sums", inputs, given, weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), str(file))
    return file


@pytest.mark.parametrize(
    ("task", "outputs", "more", "taken", "head"),
    [
        ("sentence-embedding", ("kept", "output"), (), "kept", "token_vectors"),
        ("sentence-embedding", ("output", "kept"), (), "output", "vector"),
        (
            "sentence-embedding",
            ("kept", "output"),
            ("--output-name", "output"),
            "output",
            "vector",
        ),
        ("feature-extraction", ("output", "kept"), (), "kept", "token_vectors"),
    ],
)
def test_of_several_outputs_the_first_that_fits_is_taken_or_the_one_that_is_named(
    task: str,
    outputs: tuple[str, ...],
    more: tuple[str, ...],
    taken: str,
    head: str,
    tiny_classifier: Path,
    tmp_path: Path,
) -> None:
    """The usual export of an encoder has its last layer and what its pooler makes of it."""
    file, target = summing_engine(tmp_path / "sums.onnx", 8, outputs), tmp_path / "own"
    done = made(tiny_classifier, file, target, "--task", task, *more)
    assert done.exit_code == 0, done.output
    bundle = open_bundle(target)
    assert bundle.endpoint.head == head
    assert [output.name for output in bundle.endpoint.outputs] == [taken]
    assert read_parity_set((target / "model" / "parity.json").read_bytes()).outputs == (taken,)


@pytest.mark.parametrize("task", PAIRS)
@pytest.mark.parametrize(("width", "head"), [(1, "sequence"), (8, "vector")])
def test_a_score_of_a_pair_is_one_column_and_a_vector_has_more(
    task: str, width: int, head: str, tiny_classifier: Path, tmp_path: Path
) -> None:
    file, target = summing_engine(tmp_path / "sums.onnx", width), tmp_path / "own"
    labels = ("--labels", "score") if head == "sequence" else ()
    task_of_it = ("--task", task, "--text", json.dumps(PAIRS[task]))
    done = made(tiny_classifier, file, target, *task_of_it, *labels)
    assert done.exit_code == 0, done.output
    bundle = open_bundle(target)
    assert bundle.endpoint.head == head
    answer = bundle.manifest.golden.answer
    scores = answer["scores"] if task == "sentence-similarity" else [one["score"] for one in answer]
    # The cosine of one number with another says no more than their signs.
    assert all(abs(score) < 0.999 for score in scores)


@pytest.mark.parametrize("said", ["labels", "config"])
@pytest.mark.parametrize("task", PAIRS)
def test_a_classifiers_labels_are_no_vector(
    task: str, said: str, tiny_classifier: Path, tmp_path: Path
) -> None:
    """Its cosines of single texts would be an answer that nobody asked for."""
    folder, target = tmp_path / "tokenizer", tmp_path / "own"
    shutil.copytree(tiny_classifier, folder)
    config = json.loads((folder / "config.json").read_text())
    if said == "labels":
        config["architectures"] = ["BertModel"]
        (folder / "config.json").write_text(json.dumps(config))
    columns = len(config["id2label"])
    asked = ["--task", task, "--text", json.dumps(PAIRS[task])]
    if said == "labels":
        asked += ["--labels", ",".join(map(str, range(columns)))]
    done = made(folder, summing_engine(tmp_path / "sums.onnx", columns), target, *asked)
    assert done.exit_code != 0
    assert f"needs one score for each pair, and this model has {columns} labels" in done.output
    assert not target.exists()


@pytest.mark.parametrize("task", PAIRS)
def test_a_brought_engines_texts_are_lowercased_and_cut_as_a_converted_ones(
    task: str, tiny_classifier: Path, tmp_path: Path
) -> None:
    folder, target = tmp_path / "tokenizer", tmp_path / "own"
    shutil.copytree(tiny_classifier, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    row = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([row]))
    task_of_it = ("--task", task, "--text", json.dumps(PAIRS[task]))
    done = made(folder, summing_engine(tmp_path / "sums.onnx", 8), target, *task_of_it)
    assert done.exit_code == 0, done.output
    content = (target / "tokenizer.json").read_bytes()
    assert "train" in Tokenizer.from_buffer(content).encode("Train").tokens
    assert json.loads((target / "endpoint.json").read_text())["tokens"]["truncate"]


@pytest.mark.parametrize("limit", [48, int(1e30)])
def test_a_brought_engines_texts_are_cut_where_its_tokenizer_cuts_them(
    limit: int, tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    folder, target = tmp_path / "tokenizer", tmp_path / "own"
    shutil.copytree(tiny_classifier, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_max_length"] = limit
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    body = {"text": "the train left", "candidate_labels": ["snow", "tea"]}
    arguments = (
        folder, tiny_bundle / "model" / "model.onnx", target, "--max-length", "48",
        "--task", "zero-shot-classification", "--text", json.dumps(body),
    )  # fmt: skip
    done = made(*arguments)
    assert done.exit_code == 0, done.output
    assert open_bundle(target).endpoint.tokens.truncate is (limit == 48)
    remark = "texts of more than 48 tokens are refused with 413 and not cut, unless"
    assert (remark in done.stdout) is (limit != 48)
    told = json.loads(made(*arguments, "--json").stdout)
    assert [remark in one for one in told["remarks"]] == [True] * (limit != 48)


@pytest.mark.parametrize("limit", [POSITIONS + 2, int(1e30)])
@pytest.mark.parametrize("known", [True, False], ids=["its family", "no family"])
def test_a_brought_engines_texts_end_where_its_positions_do(
    limit: int, known: bool, tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """sentence-transformers writes the number of positions as the longest text, also of families
    that begin to count further on."""
    folder, target = tmp_path / "tokenizer", tmp_path / "own"
    shutil.copytree(tiny_classifier, folder)
    change(folder / "tokenizer_config.json", model_max_length=limit)
    file = tiny_bundle / "model" / "model.onnx"
    if known:
        assert made(folder, file, target).exit_code == 0
        assert open_bundle(target).endpoint.tokens.max_length == POSITIONS
        change(folder / "config.json", model_type="roberta", pad_token_id=0)
        assert made(folder, file, target).exit_code == 0
        assert open_bundle(target).endpoint.tokens.max_length == POSITIONS - 1
        return
    change(folder / "config.json", model_type="own")
    done = made(folder, file, target)
    said = "--max-length, where it has" if limit == POSITIONS + 2 else "give --max-length TOKENS"
    refused(done, said)
    assert made(folder, file, target, "--max-length", str(POSITIONS)).exit_code == 0


def test_a_brought_engines_texts_end_unasked_where_a_converted_models_do(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many tokens attention alone needs more than a machine has."""
    monkeypatch.setattr(writer, "LONGEST_UNASKED", 16)
    file, target = tiny_bundle / "model" / "model.onnx", tmp_path / "own"
    assert made(tiny_classifier, file, target).exit_code == 0
    assert open_bundle(target).endpoint.tokens.max_length == 16
    assert made(tiny_classifier, file, target, "--max-length", str(POSITIONS)).exit_code == 0
    assert open_bundle(target).endpoint.tokens.max_length == POSITIONS


LONG = "the train left early because of snow and we waited in a small warm room " * 2


@pytest.fixture(scope="module")
def encoder_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder's vectors of tokens as ONNX, as the Hub's onnx/model.onnx has them."""
    folder = tmp_path_factory.mktemp("encoder")
    source = open_source(str(save_encoder(folder / "model")), task="feature-extraction")
    return export_onnx(source, folder / "graph.onnx").path


def sentence_folder(folder: Path, *, pooling: str = "cls", dense: int = 0) -> Path:
    """Of the same encoder; it cuts at 16 tokens, has a default prompt and compares by dot."""
    save_sentence_model(folder, folder.parent / "bare", pooling=pooling, dense=dense)
    for name, more in (
        ("sentence_bert_config.json", {"max_seq_length": 16}),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "good "}, "default_prompt_name": "query",
             "similarity_fn_name": "dot", "truncate_dim": 24},
        ),
    ):  # fmt: skip
        settings = json.loads((folder / name).read_text())
        # Where the tokenizer's own limit is written too, it comes first.
        settings.pop("processor_kwargs", None)
        (folder / name).write_text(json.dumps({**settings, **more}))
    return folder


def brought(folder: Path, file: Path, target: Path, *more: str) -> Result:
    return run(
        "--from", str(file), "--tokenizer", str(folder), "--task", "sentence-embedding",
        "--text", TEXT, "--output", str(target), *more,
    )  # fmt: skip


def answered(bundle: Path, text: str) -> Any:
    """The vector that the bundle's endpoint gives for the text."""
    files = EngineFiles("onnxruntime", "fp32", (bundle / "model" / "model.onnx",))
    content = (bundle / "tokenizer.json").read_bytes()
    local = LocalEndpoint(open_bundle(bundle).endpoint, content, open_engine(files))
    return local.answer({"text": text})["embedding"]


@pytest.mark.parametrize("asked", [("--max-length", "3"), ("--seq-len", "1", "2", "3")])
def test_a_length_that_special_tokens_fill_is_refused_with_the_least(
    asked: tuple[str, ...], tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    file = tiny_bundle / "model" / "model.onnx"
    done = made(tiny_classifier, file, tmp_path / "own", *asked)
    assert done.exit_code != 0
    assert "must be at least 4 for this model, got 3, of which 3 are special tokens" in done.output
    assert not (tmp_path / "own").exists()


def test_vectors_of_tokens_that_are_the_answer_have_the_folders_prompts(
    encoder_file: Path, tmp_path: Path
) -> None:
    folder, target = sentence_folder(tmp_path / "st"), tmp_path / "own"
    done = brought(folder, encoder_file, target, "--task", "feature-extraction")
    assert done.exit_code == 0, done.output
    embedding = open_bundle(target).endpoint.embedding
    assert embedding is not None
    assert embedding.prompts == {"query": "good ", "document": ""}
    assert embedding.default_prompt is None


@pytest.mark.parametrize("pooling", ["cls", "lasttoken"])
def test_vectors_of_tokens_become_what_the_sentence_transformers_folder_says(
    pooling: str, encoder_file: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    folder, target = sentence_folder(tmp_path / "st", pooling=pooling), tmp_path / "own"
    done = brought(folder, encoder_file, target)
    assert done.exit_code == 0, done.output
    endpoint = open_bundle(target).endpoint
    model = SentenceTransformer(str(folder), device="cpu")
    assert endpoint.tokens.max_length == model.max_seq_length == 16
    assert endpoint.embedding is not None
    assert endpoint.embedding.similarity == model.similarity_fn_name == "dot"
    # As many texts as OpenAI takes in a request.
    assert endpoint.limits.max_texts == 2048
    for text in (TEXT, LONG):
        np.testing.assert_allclose(answered(target, text), model.encode(text), atol=1e-5)


def test_an_older_layouts_model_is_named_by_its_own_folder(
    encoder_file: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    folder, target = save_older_layout(tmp_path), tmp_path / "own"
    settings = {"max_seq_length": 16, "do_lower_case": True}
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(settings))
    # Of what its Transformer's folder alone says the vectors would be others.
    refused(brought(folder / "0_Transformer", encoder_file, target), f"of the model in '{folder}'")
    assert not target.exists()
    done = brought(folder, encoder_file, target)
    assert done.exit_code == 0, done.output
    model = SentenceTransformer(str(folder), device="cpu")
    assert open_bundle(target).endpoint.tokens.max_length == model.max_seq_length == 16
    for text in (TEXT, TEXT.upper(), LONG):
        np.testing.assert_allclose(answered(target, text), model.encode(text), atol=1e-5)


def test_labels_are_read_where_an_older_layout_has_them(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    folder, target = save_older_layout(tmp_path), tmp_path / "own"
    shutil.copytree(tiny_classifier, folder / "0_Transformer", dirs_exist_ok=True)
    done = made(folder, tiny_bundle / "model" / "model.onnx", target)
    assert done.exit_code == 0, done.output
    classification = open_bundle(target).endpoint.classification
    assert classification == open_bundle(tiny_bundle).endpoint.classification


def test_what_is_said_comes_before_the_sentence_transformers_folder(
    encoder_file: Path, tmp_path: Path
) -> None:
    folder, target = sentence_folder(tmp_path / "st"), tmp_path / "own"
    said = ("--pooling", "max", "--no-normalize", "--max-length", "20")
    assert brought(folder, encoder_file, target, *said).exit_code == 0
    endpoint = open_bundle(target).endpoint
    assert endpoint.embedding is not None
    assert (endpoint.embedding.pooling, endpoint.embedding.normalize) == ("max", False)
    assert endpoint.tokens.max_length == 20


@pytest.mark.parametrize(
    ("made_with", "said"),
    [
        ({"dense": 16}, "has Pooling, Dense, Normalize behind the encoder"),
        ({"pooling": "weightedmean"}, "pools by weightedmean, and outside the engine one of cls,"),
    ],
    ids=["dense", "pooling"],
)
def test_modules_that_nothing_outside_the_engine_computes_are_refused(
    made_with: dict[str, Any], said: str, encoder_file: Path, tmp_path: Path
) -> None:
    folder, target = sentence_folder(tmp_path / "st", **made_with), tmp_path / "own"
    refused(brought(folder, encoder_file, target), said)
    assert not target.exists()
    # An engine that gives the final vectors has computed them already.
    file = summing_engine(tmp_path / "sums.onnx", 32)
    assert brought(folder, file, target).exit_code == 0
    embedding = open_bundle(target).endpoint.embedding
    assert embedding is not None
    assert (embedding.pooling, embedding.normalize) == ("engine", False)
    assert (embedding.default_prompt, embedding.dimensions) == ("query", 24)


def test_older_names_of_poolings_and_a_folder_without_modules(
    encoder_file: Path, tmp_path: Path
) -> None:
    folder = sentence_folder(tmp_path / "st")
    place = folder / "1_Pooling" / "config.json"
    old = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True}
    place.write_text(json.dumps({**old, "pooling_mode_mean_tokens": False}))
    for wanted in ("lasttoken", "mean"):
        target = tmp_path / wanted
        assert brought(folder, encoder_file, target).exit_code == 0
        embedding = open_bundle(target).endpoint.embedding
        assert embedding is not None
        assert (embedding.pooling, embedding.normalize) == (wanted, True)
        (folder / "modules.json").unlink(missing_ok=True)


PLAN_TENSORS = (
    *("--input-tensor", "input_ids:INT32", "--input-tensor", "attention_mask:INT32"),
    *("--output-tensor", "output:FP32:3", "--precision", "fp16"),
)


def plan_file(folder: Path, version: str = "") -> Path:
    path = folder / "model.plan"
    path.write_bytes(build(Plan(version or read_lock().image.tensorrt, 239, "8.6")))
    return path


def test_a_plan_says_nothing_and_the_user_everything(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, target = plan_file(tmp_path), tmp_path / "own"
    assert "give --input-tensor NAME:TYPE" in made(tiny_classifier, plan, target).output
    monkeypatch.setenv("PATH", str(tmp_path))
    unasked = made(tiny_classifier, plan, target, *PLAN_TENSORS)
    assert unasked.exit_code == 2
    assert "or give it yourself with --answer" in unasked.output
    answer = '{"label": "good", "score": 0.5}'
    done = made(tiny_classifier, plan, target, *PLAN_TENSORS, "--answer", answer)
    assert done.exit_code == 0, done.output
    bundle = open_bundle(target)
    assert bundle.manifest.engine == "tensorrt"
    assert bundle.manifest.precision == "fp16"
    assert bundle.manifest.golden.answer == json.loads(answer)
    assert bundle.manifest.parity["unproven"] == "a plan cannot be run at the desk"
    assert not (target / "model" / "parity.json").exists()
    assert [one.role for one in bundle.endpoint.inputs] == ["input_ids", "attention_mask"]


def test_a_golden_request_of_a_plan_is_looked_at_though_its_answer_is_given(
    tiny_classifier: Path, tmp_path: Path
) -> None:
    asked = ("--text", '{"question": "why?"}', "--answer", "{}")
    done = made(tiny_classifier, plan_file(tmp_path), tmp_path / "own", *PLAN_TENSORS, *asked)
    refused(done, "the golden request is none that text-classification answers: ")
    assert not (tmp_path / "own").exists()


def test_a_plan_is_padded_on_the_right_whatever_its_tokenizer_says(
    tiny_classifier: Path, tmp_path: Path
) -> None:
    folder, target = tmp_path / "tokenizer", tmp_path / "own"
    shutil.copytree(tiny_classifier, folder)
    change(folder / "tokenizer_config.json", padding_side="left")
    done = made(folder, plan_file(tmp_path), target, *PLAN_TENSORS, "--answer", "{}")
    assert done.exit_code == 0, done.output
    assert open_bundle(target).endpoint.tokens.padding_side == "right"


def test_a_plan_of_another_tensorrt_is_refused(tiny_classifier: Path, tmp_path: Path) -> None:
    plan = plan_file(tmp_path, "8.6.1.6")
    done = made(tiny_classifier, plan, tmp_path / "own", *PLAN_TENSORS, "--answer", "{}")
    assert done.exit_code == 2
    assert "built by TensorRT 8.6.1.6" in done.output
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--task", "fill-mask"), "fill-mask's graph is made by 'convert' alone"),
        (("--text", '{"question": "why?"}'), "the golden request is none that"),
        (("--text", "{"), "--text is not valid JSON"),
        (("--output-tensor", "output:FLOAT:3"), "--output-tensor must be NAME:TYPE:DIMS"),
        (("--output-name", "absent"), "is answered from an output"),
        (("--role", "x"), "--role must be NAME=ROLE"),
        (("--role", "x=ids"), "--role must be NAME=ROLE"),
    ],
)
def test_what_does_not_fit_is_refused(
    more: tuple[str, ...], said: str, tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    file, target = tiny_bundle / "model" / "model.onnx", tmp_path / "own"
    done = made(tiny_classifier, file, target, *more)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert not target.exists()


@pytest.mark.parametrize(
    ("names", "roles", "said"),
    [
        (("attention_mask",), (), "no input takes input_ids; say which one does: --role NAME=inpu"),
        (("input_ids", "ids"), (), "inputs 'input_ids' and 'ids' are both input_ids; say which"),
        (("input_ids", "x"), ("x=input_ids",), "inputs 'input_ids' and 'x' are both input_ids"),
        (("input_ids", "position_ids"), (), "input 'position_ids' is none that a call of texts"),
        (
            ("input_ids", "position_ids"),
            ("position_ids=token_type_ids",),
            "input 'position_ids' is none that a call of texts fills, whatever its role; export",
        ),
        (("input_ids", "past_key_values.0.key"), (), "'past_key_values.0.key' is none that a"),
    ],
)
def test_inputs_that_no_call_fills_are_refused_with_what_to_type(
    names: tuple[str, ...], roles: tuple[str, ...], said: str, tiny_classifier: Path, tmp_path: Path
) -> None:
    """Of a plan whose golden answer is given, so that nothing runs it."""
    stated = [part for name in names for part in ("--input-tensor", f"{name}:INT32")]
    more = [*stated, *(part for role in roles for part in ("--role", role))]
    output = ("--output-tensor", "output:FP32:3", "--answer", "{}")
    done = made(tiny_classifier, plan_file(tmp_path), tmp_path / "own", *more, *output)
    refused(done, said)
    assert not (tmp_path / "own").exists()


def test_neither_onnx_nor_a_plan(tiny_classifier: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"\x80\x02some pickle")
    assert (
        "neither an ONNX model nor a TensorRT plan"
        in made(tiny_classifier, file, tmp_path / "own").output
    )


def refused(done: Result, *said: str) -> None:
    """In one line, and nothing is left."""
    assert done.exit_code == 2, done.output
    assert done.output.startswith("error: ")
    for words in said:
        assert words in done.output
    assert isinstance(done.exception, SystemExit)


def test_a_file_that_is_cut_short_or_damaged(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    target, file = tmp_path / "own", tmp_path / "cut.onnx"
    whole = (tiny_bundle / "model" / "model.onnx").read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused(made(tiny_classifier, file, target), "'cut.onnx' is no whole ONNX model: it has")
    # Its tensors are stated, so that nobody else reads it before its weights are looked for.
    stated = ("--input-tensor", "input_ids:INT32", "--output-tensor", "output:FP32:3")
    refused(made(tiny_classifier, file, target, *stated), "'cut.onnx' is no whole ONNX model")
    file.write_bytes(onnx_bytes() + field(7, bytes(100)))  # a graph of zeros
    refused(made(tiny_classifier, file, target), "'cut.onnx' is no whole ONNX model: ")
    plan = plan_file(tmp_path)
    plan.write_bytes(plan.read_bytes()[:20])
    refused(made(tiny_classifier, plan, target, *PLAN_TENSORS, "--answer", "{}"), "model.plan")
    assert not target.exists()


@pytest.mark.parametrize("put", PUTS)
def test_weights_lie_beside_the_file_wherever_in_it_they_are_named(
    tmp_path: Path, put: Put
) -> None:
    file = tmp_path / "own" / "model.onnx"
    file.parent.mkdir()
    (tmp_path / "w.data").write_bytes(bytes(4))
    for place in ("w.data", "../w.data", f"{tmp_path}/w.data"):
        file.write_bytes(outer_model(place, put))
        with pytest.raises(ConversionRefused, match=r"'model\.onnx' are in 'w\.data'"):
            outer_weights(file)
    file.write_bytes(outer_model("w.data", put))
    shutil.move(tmp_path / "w.data", file.parent)
    assert outer_weights(file) == ("w.data",)


@pytest.mark.parametrize(
    "newer", [onnx_bytes(opset=99), onnx_bytes(ir_version=99)], ids=["opset", "ir"]
)
def test_a_file_that_the_pinned_onnxruntime_does_not_read(
    newer: bytes, tiny_classifier: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(newer)
    done = made(tiny_classifier, file, tmp_path / "own")
    refused(done, " 99, at most ", f"for ONNX Runtime {read_lock().image.onnxruntime} of the image")


def test_an_operator_that_nobody_knows(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    model = onnx.load(str(tiny_bundle / "model" / "model.onnx"))
    strange = onnx.helper.make_node("Strange", ["input_ids"], ["nothing"], domain="nobodys")
    model.graph.node.append(strange)
    model.opset_import.append(onnx.helper.make_opsetid("nobodys", 1))
    onnx.save(model, str(tmp_path / "model.onnx"))
    done = made(tiny_classifier, tmp_path / "model.onnx", tmp_path / "own")
    refused(done, "onnxruntime cannot load the file: ", "Strange", "; export it again")
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("said", "asked"), [("fp32", ["fp16", "bf16", "int8"]), ("bf16", ["bf16", "int8"])]
)
def test_a_file_that_fails_is_asked_once_a_tolerance(
    said: str, asked: list[str], tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found: list[object] = []

    def fails(_case: object, _call: object, precision: str, tolerance: object) -> ShapeReport:
        assert precision == said
        found.append(tolerance)
        return ShapeReport(1, 1, 9.0, None, "at every length")

    monkeypatch.setattr(ShapeCase, "prove", fails)
    file = tiny_bundle / "model" / "model.onnx"
    done = made(tiny_classifier, file, tmp_path / "own", "--precision", said)
    assert done.exit_code == 0, done.output
    assert "the file does not answer alike at every shape: at every length" in done.output
    assert found == [TOLERANCES[name].of_shapes for name in asked]


@pytest.mark.parametrize("command", ["bundle", "adopt"])
def test_it_is_signed_before_it_is_spoken_of(
    command: str, tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`| head`, or a terminal that was closed, takes no more lines."""

    def leave(*_: object, **__: object) -> None:
        raise BrokenPipeError

    file, target = tiny_bundle / "model" / "model.onnx", tmp_path / "own"
    monkeypatch.setattr(adoption, "served_model", lambda *_: nullcontext(ServedModel(file, None)))
    monkeypatch.setattr("transformer_serving.desk.cli.bundle._say", leave)
    secret, key = new_key("me", tmp_path)
    source = ("--from", str(file)) if command == "bundle" else ("x",)
    done = CliRunner().invoke(
        main,
        [command, *source, "--tokenizer", str(tiny_classifier), "--task", "text-classification",
         "--text", TEXT, "--output", str(target), "--sign", str(secret)],
    )  # fmt: skip
    assert done.exit_code != 0
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, key.public)
    assert open_bundle(target).manifest.engine == "onnxruntime"


def test_a_folder_without_a_tokenizer(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers makes one of special tokens alone, to which every text is the same."""
    folder = tmp_path / "tokenizer"
    shutil.copytree(tiny_classifier, folder)
    (folder / "tokenizer.json").unlink()
    file, said = tiny_bundle / "model" / "model.onnx", "copy the model's tokenizer.json and tokeniz"
    refused(made(folder, file, tmp_path / "own"), said)
    served = nullcontext(ServedModel(file, None))
    monkeypatch.setattr(adoption, "served_model", lambda *_: served)
    adopted = CliRunner().invoke(
        main,
        ["adopt", "x", "--tokenizer", str(folder), "--task", "text-classification", "--text", TEXT,
         "--output", str(tmp_path / "own")],
    )  # fmt: skip
    refused(adopted, said)


def test_another_models_tokenizer(tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Its ids are past the embedding: in the golden request, or only in what is tried after it."""
    file, target = tiny_bundle / "model" / "model.onnx", tmp_path / "own"
    for word in ("train", "piano"):
        folder = tmp_path / word
        shutil.copytree(tiny_classifier, folder)
        tokens = json.loads((folder / "tokenizer.json").read_text())
        tokens["model"]["vocab"][word] = 200
        (folder / "tokenizer.json").write_text(json.dumps(tokens))
        done = made(folder, file, target)
        refused(done, "onnxruntime cannot run the engine on texts of this --tokenizer: ", "idx=200")
    assert not target.exists()


def test_sizes_of_an_endpoint_with_and_without_the_batch() -> None:
    from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields

    def fields(inputs: Any, output: Any) -> EndpointFields:
        return EndpointFields(
            TensorFields(["input_ids"], ["int32"], [inputs]),
            TensorFields(["output"], ["float32"], [output]),
        )

    wanted = (EngineTensor("input_ids", "INT32", (-1, -1)), EngineTensor("output", "FP32", (-1, 2)))
    for given in (fields([-1, -1], [-1, 2]), fields([-1], [2])):
        found = tensors_of(given)
        assert (*found.inputs, *found.outputs) == wanted


def test_a_tensor_that_is_none_is_told_what_its_option_takes() -> None:
    for text in ("a", "a:FP32X", ":INT32", "a:INT32:x"):
        with pytest.raises(ConversionRefused) as refused:
            parse_tensor("--input-tensor", text, (-1,))
        assert str(refused.value) == (
            "--input-tensor must be NAME:TYPE with a TYPE of INT32, INT64, such as input_ids:INT32"
        )
        with pytest.raises(ConversionRefused, match="must be NAME:TYPE:DIMS .* output:FP32:2"):
            parse_tensor("--output-tensor", text, ())
