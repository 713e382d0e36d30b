"""What is read from a model folder, and which models are refused before torch is loaded."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.utils._paths import filter_repo_objects
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer as Library
from tokenizers.models import WordLevel
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from preprocess.tokens import Tokenizer
from preprocess.windows import Windows
from tests.families import FAMILIES, LINES, save_model
from tests.tiny_models import (
    POSITIONS,
    bert_config,
    save_classifier,
    save_encoder,
    save_older_layout,
    save_roberta,
    save_sentence_model,
    save_tokenizer,
)
from transformer_serving.contract.meanings import Classification
from transformer_serving.desk.export.endpoint_json import LIMITS, remarks_of, tokens_of
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.labels import read_labels
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.desk.source.model import open_source
from transformer_serving.desk.source.sentence import SentenceSettings
from transformer_serving.desk.source.tokenizer import read_tokenizer

_TRANSFORMER = "sentence_transformers.models.Transformer"
# The special pieces of a SentencePiece model, as its trainer calls them.
_PIECES = ("unk", "bos", "eos", "pad")


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return save_classifier(tmp_path / "model")


def change(path: Path, **fields: Any) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, **fields}))


def test_classifier_folder_is_read(classifier: Path) -> None:
    source = open_source(str(classifier))
    assert source.task == "text-classification"
    assert source.head == "sequence"
    assert source.classification == Classification(
        ("bad", "fair", "good"), "single_label", "softmax", None
    )
    assert source.max_length == POSITIONS
    assert source.takes_token_types
    assert (source.name, source.revision) == ("model", None)
    assert (source.tokenizer.pad_id, source.tokenizer.pad_token) == (0, "[PAD]")


def test_tokenizer_neither_pads_nor_cuts(classifier: Path) -> None:
    assert json.loads((classifier / "tokenizer.json").read_text())["truncation"] is not None
    tokenizer = Library.from_buffer(open_source(str(classifier)).tokenizer.content)
    assert tokenizer.padding is None
    assert tokenizer.truncation is None
    assert len(tokenizer.encode("the train " * 30).ids) == 62


@pytest.mark.parametrize("task", ["token-classification", "zero-shot-classification"])
@pytest.mark.parametrize(
    ("own", "asked", "said"),
    [
        (POSITIONS, None, None),
        (30, None, None),
        (10**30, None, "says no longest text"),
        (1e30, None, "says no longest text"),
        (POSITIONS + 1, None, "cuts at 49 tokens"),
        (POSITIONS, 20, "cuts at 48 tokens"),
    ],
)
def test_texts_are_cut_unasked_where_the_tokenizer_has_its_pipeline_cut_them(
    classifier: Path, task: str, own: float, asked: int | None, said: str | None
) -> None:
    change(classifier / "tokenizer_config.json", model_max_length=own)
    if task == "token-classification":
        change(classifier / "config.json", architectures=["BertForTokenClassification"])
    source = open_source(str(classifier), task=task)
    tokens = tokens_of(source, asked, ())
    assert tokens.truncate is (said is None)
    remarks = remarks_of(source, tokens, asked)
    assert len(remarks) == (said is not None)
    for remark in remarks:
        assert str(said) in remark
        assert f"set model_max_length to {tokens.max_length} in the tokenizer_config" in remark
        change(classifier / "tokenizer_config.json", model_max_length=tokens.max_length)
        assert tokens_of(open_source(str(classifier), task=task), asked, ()).truncate
    others = open_source(str(classifier), task="sentence-embedding")
    assert tokens_of(others, asked, ()).truncate
    [remark] = remarks_of(others, tokens_of(others, asked, ()), asked)
    assert remark.startswith("the model has no modules.json, which would say how it pools")


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_special_tokens_that_a_text_writes_out_are_what_transformers_takes_them_for(
    split: bool, classifier: Path
) -> None:
    change(classifier / "tokenizer_config.json", split_special_tokens=split)
    reference = AutoTokenizer.from_pretrained(str(classifier))
    source = open_source(str(classifier))
    tokens = tokens_of(source, None, ())
    tokenizer = Tokenizer(source.tokenizer.content, tokens)
    windows = Windows(source.tokenizer.content, tokens)
    text = "the train [SEP] left [MASK] early [CLS]"
    wanted = reference(text)["input_ids"]
    assert (reference.sep_token_id in wanted[1:-1]) is not split
    assert tokenizer.encode([text], None, LIMITS)[0].ids == wanted
    assert windows.whole([text], special=True)[0].ids == wanted
    long = text * 9
    assert tokenizer.whole([long], special=True)[0].ids == reference(long)["input_ids"]


def test_roberta_counts_positions_from_its_padding_id(tmp_path: Path) -> None:
    source = open_source(str(save_roberta(tmp_path)))
    assert source.max_length == POSITIONS - 1
    assert not source.takes_token_types


def test_the_smallest_length_of_the_files_counts(classifier: Path) -> None:
    change(classifier / "tokenizer_config.json", model_max_length=30)
    assert open_source(str(classifier)).max_length == 30


def test_a_length_beyond_the_models_is_refused_by_both_options_that_name_it(
    classifier: Path,
) -> None:
    said = f"--max-length, or the MAX of --seq-len, must be from 4 to {POSITIONS} .*, got 49$"
    with pytest.raises(ConversionRefused, match=said):
        tokens_of(open_source(str(classifier)), POSITIONS + 1, ())


@pytest.mark.parametrize(
    ("architecture", "task", "least"),
    [
        ("BertForSequenceClassification", "text-classification", 4),
        ("BertForQuestionAnswering", "question-answering", 4),
        ("BertForTokenClassification", "token-classification", 3),
        ("BertModel", "sentence-embedding", 3),
    ],
)
def test_a_length_that_special_tokens_fill_is_refused_with_the_least(
    classifier: Path, architecture: str, task: str, least: int
) -> None:
    change(classifier / "config.json", architectures=[architecture])
    source = open_source(str(classifier), task=task)
    assert tokens_of(source, least, ()).max_length == least
    said = f"must be from {least} to {POSITIONS} .*, got {{}}, of which {least - 1} are special"
    for length in range(1, least):
        with pytest.raises(ConversionRefused, match=said.format(length)):
            tokens_of(source, length, ())
    unbounded = replace(source, max_length=None)
    with pytest.raises(ConversionRefused, match=f"must be at least {least} for this model, got 1"):
        tokens_of(unbounded, 1, ())


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_settings_of_a_transformer_module_count_beside_modules_json_alone(
    tmp_path: Path, place: str
) -> None:
    """Of a bare folder sentence-transformers never reads them, nor of a module's own folder."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    model = save_older_layout(tmp_path) / place if place else save_encoder(tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    change(model / "sentence_bert_config.json", max_seq_length=20, do_lower_case=True)
    reference: Any = SentenceTransformer(str(model), device="cpu")
    source = open_source(str(model), task="sentence-embedding")
    assert source.max_length == reference.max_seq_length == POSITIONS
    words = Library.from_buffer(source.tokenizer.content).encode("Train the").ids
    assert words == reference.tokenizer("Train the")["input_ids"]
    change(
        model / "config.json", architectures=["BertForSequenceClassification"], id2label={0: "0"}
    )
    crossing: Any = CrossEncoder(str(model), device="cpu")
    assert open_source(str(model), task="rerank").max_length == crossing.max_seq_length


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "xlm-roberta", "xlnet"])
def test_the_length_and_case_of_a_transformer_module_stand_in_its_folder(
    tmp_path: Path, name: str
) -> None:
    model = sentence_model(tmp_path)
    rows = json.loads((model / "modules.json").read_text())
    rows[0]["path"] = "0_Transformer"
    (model / "modules.json").write_text(json.dumps(rows))
    (model / "0_Transformer").mkdir()
    settings = model / "0_Transformer" / f"sentence_{name}_config.json"
    change(settings, max_seq_length=20, do_lower_case=True)
    assert open_source(str(model)).max_length == 20
    assert open_source(str(model), task="feature-extraction").max_length == POSITIONS
    change(settings, processor_kwargs={"model_max_length": 16})
    assert open_source(str(model)).max_length == 16
    # As there, it stands in the place of what the tokenizer says.
    change(model / "tokenizer_config.json", model_max_length=10)
    assert open_source(str(model)).max_length == 16
    # Before all of these stands what the tokenizer is told at each call.
    change(settings, processing_kwargs={"text": {"max_length": 24, "padding": True}})
    assert open_source(str(model)).max_length == 24
    change(settings, processing_kwargs={"text": {"max_length": 24}, "common": {"max_length": 22}})
    assert open_source(str(model)).max_length == 22


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"problem_type": "multi_label_classification"}, ("multi_label", "sigmoid")),
        ({"id2label": {"0": "toxic"}}, ("multi_label", "sigmoid")),
        ({"problem_type": "regression", "id2label": {"0": "stars"}}, ("regression", "none")),
        ({}, ("single_label", "softmax")),
    ],
)
def test_problem_type_and_activation(
    classifier: Path, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    change(classifier / "config.json", **fields)
    found = open_source(str(classifier)).classification
    assert found is not None
    assert (found.problem_type, found.activation) == expected


@pytest.mark.parametrize(
    ("labels", "column"),
    [
        (["contradiction", "neutral", "Entailment"], 2),
        (["ENTAILMENT", "NOT"], 0),
        (["LABEL_0", "LABEL_1"], 1),
    ],
)
def test_zero_shot_finds_the_column_of_entailment(
    classifier: Path, labels: list[str], column: int
) -> None:
    for columns in (None, {label: at for at, label in enumerate(labels)}):
        change(classifier / "config.json", id2label=dict(enumerate(labels)), label2id=columns)
        found = open_source(str(classifier), task="zero-shot-classification").classification
        assert found is not None
        assert found.entailment == column


@pytest.mark.parametrize("column", [3, -1, "0", None])
def test_a_column_of_entailment_that_is_none_is_refused(classifier: Path, column: Any) -> None:
    change(classifier / "config.json", label2id={"entailment": column})
    assert open_source(str(classifier)).classification is not None
    with pytest.raises(ConversionRefused, match="label2id must give .* a column from 0 to 2"):
        open_source(str(classifier), task="zero-shot-classification")


@pytest.mark.parametrize(
    ("architecture", "task", "head"),
    [
        ("BertForSequenceClassification", "text-classification", "sequence"),
        ("BertForTokenClassification", "token-classification", "tokens"),
        ("BertForQuestionAnswering", "question-answering", "spans"),
        ("BertForMaskedLM", "fill-mask", "masks"),
        ("BertModel", "feature-extraction", "token_vectors"),
    ],
)
def test_the_task_is_read_from_the_architecture(
    classifier: Path, architecture: str, task: str, head: str
) -> None:
    change(classifier / "config.json", architectures=[architecture])
    source = open_source(str(classifier), task="auto")
    assert (source.task, source.head) == (task, head)


@pytest.mark.parametrize(
    ("written", "activation"),
    [
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            "sigmoid",
        ),
        ({"sentence_transformers": {"version": "4.0.0"}}, "sigmoid"),
        # As CrossEncoder has it: what is not torch's own is not taken.
        ({"sentence_transformers": {"activation_fn": "own.util.Identity"}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "own.util.Tanh"}}, "sigmoid"),
    ],
)
def test_a_cross_encoder_reranks_with_its_own_activation(
    classifier: Path, written: dict[str, Any], activation: str
) -> None:
    change(classifier / "config.json", id2label={"0": "LABEL_0"}, **written)
    source = open_source(str(classifier))
    assert (source.task, source.head) == ("rerank", "sequence")
    assert source.classification is not None
    assert source.classification.activation == activation
    similar = open_source(str(classifier), task="sentence-similarity")
    assert (similar.head, similar.sentence) == ("sequence", None)


_IDENTITY, _TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


@pytest.mark.parametrize(
    ("modules", "own", "older", "expected"),
    [
        (True, _IDENTITY, _TANH, "none"),
        (True, "own.Identity", _IDENTITY, "none"),
        (True, "own.Identity", None, "sigmoid"),
        (False, _IDENTITY, None, "sigmoid"),
        (True, _TANH, _IDENTITY, r"config_sentence_transformers\.json \(activation_fn\)"),
        (False, _IDENTITY, _TANH, r"config\.json \(sentence_transformers\.activation_fn\)"),
    ],
)
def test_the_activation_is_that_of_cross_encoder_and_what_is_refused_says_where_it_stands(
    classifier: Path, modules: bool, own: str, older: str | None, expected: str
) -> None:
    from sentence_transformers import CrossEncoder

    config = classifier / "config.json"
    change(config, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
    change(config, sentence_transformers={"activation_fn": older} if older else {"version": "4"})
    model = BertForSequenceClassification(bert_config(num_labels=1))
    model.save_pretrained(str(classifier.parent / "weights"))
    shutil.copy(classifier.parent / "weights" / "model.safetensors", classifier)
    if modules:
        row = {"idx": 0, "name": "0", "path": "", "type": _TRANSFORMER}
        (classifier / "modules.json").write_text(json.dumps([row]))
        task = "sequence-classification"
        change(classifier / "sentence_bert_config.json", transformer_task=task)
    change(
        classifier / "config_sentence_transformers.json",
        model_type="CrossEncoder",
        activation_fn=own,
    )
    if expected in ("none", "sigmoid"):
        found = open_source(str(classifier), task="rerank").classification
        assert found is not None
        assert found.activation == expected
        reference: Any = CrossEncoder(str(classifier), device="cpu")
        names = {"none": "Identity", "sigmoid": "Sigmoid"}
        assert type(reference.activation_fn).__name__ == names[expected]
        return
    with pytest.raises(ConversionRefused, match=f"activation in {expected} is '{_TANH}', .* set"):
        open_source(str(classifier), task="rerank")


def test_a_tokenizer_without_tokenizer_json_is_made_from_its_vocabulary(classifier: Path) -> None:
    want = open_source(str(classifier)).tokenizer
    vocabulary = json.loads((classifier / "tokenizer.json").read_text())["model"]["vocab"]
    (classifier / "tokenizer.json").unlink()
    (classifier / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary))
    change(
        classifier / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=True
    )
    made = open_source(str(classifier)).tokenizer
    text = "The train left early, said the clerk!"
    ids = [Library.from_buffer(one.content).encode(text).ids for one in (want, made)]
    assert ids[0] == ids[1]
    assert (made.pad_id, made.unk_id, made.cls_id, made.mask_id) == (0, 1, 2, 4)


def sentencepiece_model(folder: Path, family: str, file: str, specials: list[str]) -> Path:
    """A classifier whose tokenizer is a SentencePiece file alone, trained on what its family is."""
    sentencepiece: Any = importlib.import_module("sentencepiece")
    model = save_model(family, folder)
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=written,
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
        **{f"{name}_piece": piece for name, piece in zip(_PIECES, specials, strict=True)},
        **{f"{name}_id": at for at, name in enumerate(_PIECES)},
    )
    (model / file).write_bytes(written.getvalue())
    return model


def test_a_tokenizer_of_a_sentencepiece_file_alone(tmp_path: Path) -> None:
    """Its ids are the package's own with XLM-R's offset, between its special tokens."""
    sentencepiece: Any = importlib.import_module("sentencepiece")
    file = "sentencepiece.bpe.model"
    model = sentencepiece_model(
        tmp_path / "model", "xlm-roberta", file, ["<unk>", "<s>", "</s>", "<p>"]
    )
    own = sentencepiece.SentencePieceProcessor(model_file=str(model / file))
    source = open_source(str(model))
    text = "The train left early."
    ids = Library.from_buffer(source.tokenizer.content).encode(text).ids
    assert ids == [0, *(1 + at for at in own.encode(text)), 2]
    assert source.tokenizer.pad_id == 1


def test_a_tokenizer_that_is_made_without_its_special_tokens_is_refused(tmp_path: Path) -> None:
    """As transformers 5.2 makes DeBERTa's; one from a tokenizer.json has what that says."""
    model = sentencepiece_model(
        tmp_path / "model", "deberta-v3", "spm.model", ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    )
    with pytest.raises(ConversionRefused, match=r"does not put \[CLS\] and \[SEP\] around a text"):
        open_source(str(model))
    # Text that goes on has nothing around it.
    assert read_tokenizer(model, pads=False).cls_id == 1
    assert open_source(str(save_model("deberta-v3", tmp_path / "other"))).head == "sequence"


def test_a_decoder_that_merely_has_those_tokens_is_read(tmp_path: Path) -> None:
    """As GPT-2s that were trained with T5's tokenizer, which ends a text in a token of its own."""
    model = sentencepiece_model(
        tmp_path / "model", "deberta-v3", "spiece.model", ["<unk>", "<s>", "</s>", "[PAD]"]
    )
    tokens = {"eos_token": "</s>", "pad_token": "[PAD]", "cls_token": "<s>", "sep_token": "[PAD]"}
    change(model / "tokenizer_config.json", tokenizer_class="T5Tokenizer", extra_ids=0, **tokens)
    tokenizer = read_tokenizer(model)
    assert Library.from_buffer(tokenizer.content).encode("The train").tokens[-1] == "</s>"
    assert tokenizer.cls_id == 1


def test_the_package_that_reads_a_sentencepiece_file_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model("xlm-roberta", tmp_path / "model")
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    (model / "sentencepiece.bpe.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    said = r"'sentencepiece.bpe.model' without a tokenizer.json, .* the package sentencepiece; inst"
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(model))


def test_a_tokenizer_without_files_or_in_python_is_refused(classifier: Path) -> None:
    (classifier / "tokenizer.json").unlink()
    change(classifier / "tokenizer_config.json", tokenizer_class="BertTokenizerLegacyPython")
    with pytest.raises(ConversionRefused, match="the tokenizer of 'model'") as refused:
        open_source(str(classifier))
    assert "tokenizer.json" in str(refused.value)


def test_lowercase_of_sentence_transformers_reaches_the_tokenizer(tmp_path: Path) -> None:
    model = sentence_model(tmp_path)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    change(model / "sentence_bert_config.json", do_lower_case=True)
    content = open_source(str(model), task="sentence-embedding").tokenizer.content
    assert Library.from_buffer(content).encode("Train").tokens == ["[CLS]", "train", "[SEP]"]


@pytest.mark.parametrize("lowercases", [False, True])
def test_an_added_token_is_not_found_where_only_a_lowercased_one_would_be(
    tmp_path: Path, lowercases: bool
) -> None:
    """The reference normalizes its added tokens when it reads them, and lowercases texts later."""
    from sentence_transformers import SentenceTransformer

    model = save_sentence_model(tmp_path / "model", tmp_path / "encoder", pooling="mean")
    text = "a trainTEA tea"
    written = json.loads((model / "tokenizer.json").read_text())
    written["normalizer"] = {"type": "Lowercase"} if lowercases else None
    token = dict(written["added_tokens"][-1], special=False, normalized=True)
    written["added_tokens"].append(
        {**token, "id": len(written["model"]["vocab"]), "content": "TEA"}
    )
    (model / "tokenizer.json").write_text(json.dumps(written))
    change(model / "sentence_bert_config.json", do_lower_case=True)
    if not lowercases:
        said = "the added token 'TEA', which no text has .* set do_lower_case to false, or"
        with pytest.raises(ConversionRefused, match=said):
            open_source(str(model), task="sentence-embedding")
        written["added_tokens"][-1]["normalized"] = False
        (model / "tokenizer.json").write_text(json.dumps(written))
    content = open_source(str(model), task="sentence-embedding").tokenizer.content
    loaded = SentenceTransformer(str(model), device="cpu").tokenizer
    assert Library.from_buffer(content).encode(text).ids == loaded(text)["input_ids"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id2label": {"0": "same", "1": "same"}}, "one label twice"),
        ({"id2label": {"1": "one", "2": "two"}}, "0, 1, 2"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "--task"),
        ({"model_type": "made-up"}, "model type 'made-up' is not one that the pinned"),
        ({"model_type": ["bert"]}, r"model type '\['bert'\]' is not one that the pinned"),
        ({"id2label": {"NEG": 0, "POS": 1}}, "cannot read config.json .ValueError: .*'NEG'"),
        ({"id2label": ["a", "b", "c"]}, "cannot read config.json .ValueError: .*id2label"),
        ({"problem_type": "multi_label"}, "cannot read config.json .ValueError: .*problem_type"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number, got str"),
        ({"architectures": ["GPT2LMHeadModel"]}, "name --task text-generation to serve the text"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "and a decoder is not served"),
    ],
)
def test_models_that_cannot_be_served_are_refused(
    classifier: Path, fields: dict[str, Any], message: str
) -> None:
    change(classifier / "config.json", **fields)
    with pytest.raises(ConversionRefused, match=message) as refused:
        open_source(str(classifier))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id2label": {"NEG": 0, "POS": 1}}, "must have numbers for keys and labels for values"),
        ({"id2label": ["NEG", "POS"]}, "must be an object of labels by number, got list"),
        ({"id2label": {"0": "NEG", "1": "POS"}, "problem_type": "multi_label"}, "'multi_label'"),
        ({"id2label": {"0": "NEG", "1": "POS"}, "problem_type": ["regression"]}, "must be one of"),
    ],
    ids=["swapped", "list", "problem type", "no name"],
)
def test_labels_that_nobody_else_has_read_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConversionRefused, match=message):
        read_labels(config, tmp_path, "text-classification")


@pytest.mark.parametrize(("label", "named"), [(0, "a value of type int"), (None, "null")])
def test_a_label_that_is_no_text_is_refused_where_answers_have_it(
    classifier: Path, label: Any, named: str
) -> None:
    change(classifier / "config.json", id2label={"0": label}, label2id={"0": 0})
    with pytest.raises(ConversionRefused, match=f"id2label must have .* label 0 is {named}; write"):
        open_source(str(classifier))
    # A pair's score has no name.
    assert open_source(str(classifier), task="rerank").head == "sequence"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("token-classification", "no trained head for token-classification"),
        ("question-answering", "ForQuestionAnswering"),
        ("rerank", "one score for each pair, and this model has 3"),
        ("chat", "cannot be served; choose one of .*, text-generation$"),
    ],
)
def test_a_task_that_the_weights_are_not_for_is_refused(
    classifier: Path, task: str, message: str
) -> None:
    with pytest.raises(ConversionRefused, match=message):
        open_source(str(classifier), task=task)


def sentence_model(folder: Path, **settings: Any) -> Path:
    model = save_encoder(folder)
    rows = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_P", "type": "sentence_transformers.models.Pooling"},
    ]
    (model / "modules.json").write_text(json.dumps(rows))
    (model / "1_P").mkdir()
    change(model / "config_sentence_transformers.json", **settings)
    return model


def test_a_transformer_in_a_folder_of_its_own_is_read(tmp_path: Path) -> None:
    """The layout of older releases; tests/export/test_onnx.py loads it."""
    model = save_older_layout(tmp_path)
    change(model / "0_Transformer" / "sentence_bert_config.json", max_seq_length=20)
    source = open_source(str(model))
    assert (source.folder, source.encoder) == (model, model / "0_Transformer")
    assert (source.task, source.max_length, source.name) == ("sentence-embedding", 20, "model")
    (source.encoder / "model.safetensors").rename(source.encoder / "pytorch_model.bin")
    with pytest.raises(ConversionRefused, match=r"'0_Transformer/pytorch_model\.bin' is a pickle"):
        open_source(str(model))


@pytest.mark.parametrize("task", ["auto", "feature-extraction"])
def test_a_first_module_that_is_no_transformer_is_told_by_its_name(
    tmp_path: Path, task: str
) -> None:
    model = save_older_layout(tmp_path)
    rows = (model / "modules.json").read_text()
    (model / "modules.json").write_text(rows.replace("models.Transformer", "models.CLIPModel"))
    with pytest.raises(ConversionRefused, match=r"modules\.json starts with 'CLIPModel'; only"):
        open_source(str(model), task=task)


def test_prompts_and_similarity_are_read(tmp_path: Path) -> None:
    model = sentence_model(
        tmp_path,
        prompts={"query": "query: ", "document": "", "other": None},
        default_prompt_name="query",
        similarity_fn_name="dot",
    )
    source = open_source(str(model))
    assert (source.task, source.head) == ("sentence-embedding", "vector")
    prompts = {"query": "query: ", "document": "", "other": ""}
    assert source.sentence == SentenceSettings(("Pooling",), prompts, "query", "dot")
    assert open_source(str(model), task="rerank").head == "vector"


@pytest.mark.parametrize("task", ["sentence-embedding", "feature-extraction"])
@pytest.mark.parametrize("prompts", [{}, {"passage": "passage: ", "query": "query: "}])
def test_every_model_has_its_prompts_and_the_two_of_the_reference(
    tmp_path: Path, prompts: dict[str, str], task: str
) -> None:
    from sentence_transformers import SentenceTransformer

    model = save_sentence_model(tmp_path / "model", tmp_path / "encoder", pooling="mean")
    change(model / "config_sentence_transformers.json", prompts=prompts)
    for folder in (model, tmp_path / "encoder"):
        sentence = open_source(str(folder), task=task).sentence
        assert sentence is not None
        assert sentence.prompts == SentenceTransformer(str(folder), device="cpu").prompts


def test_vectors_of_tokens_have_no_default_prompt(tmp_path: Path) -> None:
    """Nor is one refused that is not there: the reference of feature-extraction reads none."""
    for name in ("query", "nope"):
        model = sentence_model(
            tmp_path / name, prompts={"query": "query: "}, default_prompt_name=name
        )
        sentence = open_source(str(model), task="feature-extraction").sentence
        assert sentence is not None
        assert (sentence.default_prompt, sentence.prompts["query"]) == (None, "query: ")


@pytest.mark.parametrize("task", ["auto", "sentence-embedding", "rerank", "sentence-similarity"])
@pytest.mark.parametrize("kind", ["SparseEncoder", "MultiVectorEncoder"])
def test_what_is_no_embedder_is_not_made_into_one(tmp_path: Path, kind: str, task: str) -> None:
    model = sentence_model(tmp_path, model_type=kind)
    with pytest.raises(ConversionRefused, match=f"the model is a {kind} .* SentenceTransformer or"):
        open_source(str(model), task=task)
    assert open_source(str(model), task="feature-extraction").head == "token_vectors"


def test_a_sparse_encoder_as_its_own_package_saves_it(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    torch.manual_seed(7)
    BertForMaskedLM(bert_config()).save_pretrained(str(tmp_path / "encoder"))
    save_tokenizer(tmp_path / "encoder")
    SparseEncoder(str(tmp_path / "encoder"), device="cpu").save(str(tmp_path / "sparse"))
    with pytest.raises(ConversionRefused, match="the model is a SparseEncoder"):
        open_source(str(tmp_path / "sparse"))
    assert open_source(str(tmp_path / "sparse"), task="fill-mask").head == "masks"


def test_a_cross_encoder_has_no_vectors(classifier: Path) -> None:
    change(classifier / "config.json", id2label={"0": "LABEL_0"})
    assert open_source(str(classifier), task="sentence-embedding").head == "vector"
    change(classifier / "config.json", sentence_transformers={"version": "4.0.0"})
    with pytest.raises(ConversionRefused, match="the model is a CrossEncoder, .* --task rerank"):
        open_source(str(classifier), task="sentence-embedding")
    change(classifier / "config.json", sentence_transformers=None)
    row = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
    (classifier / "modules.json").write_text(json.dumps([row]))
    change(classifier / "config_sentence_transformers.json", model_type="CrossEncoder")
    with pytest.raises(ConversionRefused, match="the model is a CrossEncoder"):
        open_source(str(classifier), task="sentence-embedding")
    assert open_source(str(classifier)).task == "rerank"


@pytest.mark.parametrize("task", ["rerank", "sentence-similarity"])
def test_a_reranker_that_answers_yes_or_no_is_no_embedder(classifier: Path, task: str) -> None:
    """Its files do not tell it from an embedder's; one that was saved as an embedder is one."""
    change(classifier / "config.json", architectures=["Qwen3ForCausalLM"])
    with pytest.raises(ConversionRefused, match="is Qwen3ForCausalLM, .* answers yes or no, and"):
        open_source(str(classifier), task=task)
    assert open_source(str(classifier), task="sentence-embedding").head == "vector"
    rows = [
        {"idx": at, "path": "", "type": f"sentence_transformers.models.{name}"}
        for at, name in enumerate(("Transformer", "Pooling"))
    ]
    (classifier / "modules.json").write_text(json.dumps(rows))
    assert open_source(str(classifier), task=task).head == "vector"


def test_modules_without_a_pooling_have_no_vector_of_a_text(tmp_path: Path) -> None:
    model = sentence_model(tmp_path)
    rows = json.loads((model / "modules.json").read_text())
    (model / "modules.json").write_text(json.dumps(rows[:1]))
    with pytest.raises(ConversionRefused, match="has no Pooling behind its Transformer"):
        open_source(str(model))
    # A Transformer may give it itself.
    change(model / "sentence_bert_config.json", module_output_name="sentence_embedding")
    assert open_source(str(model)).head == "vector"
    (model / "modules.json").unlink()
    assert open_source(str(model), task="sentence-embedding").head == "vector"


def test_what_is_said_of_a_pooling_that_nobody_has_said_is_what_is_done(
    classifier: Path, tmp_path: Path
) -> None:
    """Of a causal language model sentence-transformers takes the last token, else the mean."""
    from transformer_serving.desk.export.heads import load_sentence_model

    causal = shutil.copytree(classifier, tmp_path / "causal")
    config = json.loads((causal / "config.json").read_text())
    (causal / "config.json").write_text(json.dumps({**config, "architectures": ["XForCausalLM"]}))
    for model, mode in ((classifier, "mean"), (causal, "lasttoken")):
        source = open_source(str(model), task="sentence-embedding")
        assert load_sentence_model(source)[1].pooling_mode == mode
        [remark] = remarks_of(source, tokens_of(source, 32, ()), 32)
        assert remark.endswith(
            "the mean of its tokens', of a …ForCausalLM its last token's; --pooling says otherwise"
        )


def test_a_pooling_is_asked_for_where_the_model_says_none(classifier: Path, tmp_path: Path) -> None:
    asked = open_source(str(classifier), task="sentence-embedding", pooling="cls")
    assert asked.sentence is not None
    assert asked.sentence.pooling == "cls"
    assert remarks_of(asked, tokens_of(asked, None, ()), None) == ()
    with pytest.raises(ConversionRefused, match=r"--pooling cls makes one vector of a text's, and"):
        open_source(str(classifier), pooling="cls")
    model = sentence_model(tmp_path / "sentence")
    said = open_source(str(model))
    assert remarks_of(said, tokens_of(said, None, ()), None) == ()
    with pytest.raises(ConversionRefused, match="modules.json of 'sentence' says it; leave it out"):
        open_source(str(model), pooling="mean")


def test_a_default_prompt_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = sentence_model(tmp_path, prompts={"q": "query: "}, default_prompt_name="nope")
    said = r"default_prompt_name 'nope' is none of the prompts .*\(query, document, q\); correct"
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(model))
    # These two sentence-transformers has itself, empty where nothing is written.
    change(model / "config_sentence_transformers.json", default_prompt_name="document")
    sentence = open_source(str(model)).sentence
    assert sentence is not None
    assert (sentence.default_prompt, sentence.prompts["document"]) == ("document", "")


@pytest.mark.parametrize("task", ["auto", "feature-extraction"])
def test_an_encoder_without_its_decoder_is_sent_to_its_own_task(
    classifier: Path, task: str
) -> None:
    change(classifier / "config.json", architectures=["T5EncoderModel"])
    with pytest.raises(ConversionRefused, match="is T5EncoderModel, .* --task sentence-embedding"):
        open_source(str(classifier), task=task)
    assert open_source(str(classifier), task="sentence-embedding").head == "vector"


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack"])
def test_weights_of_other_frameworks_alone_are_refused(
    classifier: Path, hub: tuple[Path, Path], name: str
) -> None:
    shutil.copytree(classifier, hub[0], dirs_exist_ok=True)
    (classifier / name).write_bytes(b"")
    assert open_source(str(classifier)).head == "sequence"
    (classifier / "model.safetensors").unlink()
    for opened in (open_source, open_language_model):
        with pytest.raises(ConversionRefused, match=f"'{name}' alone, and TensorFlow's and Flax's"):
            opened(str(classifier), allow_pickle=True)
    (hub[0] / "model.safetensors").rename(hub[0] / name)
    with pytest.raises(ConversionRefused, match="where they are other frameworks' alone, Tensor"):
        open_source("some-owner/some-model")
    said = r"has neither 'model\.safetensors' nor 'pytorch_model\.bin', and TensorFlow's"
    with pytest.raises(ConversionRefused, match=said):
        open_source("some-owner/some-model", allow_pickle=True)


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("rerank", "chat_template.jinja"),
        ("sentence-similarity", "chat_template.jinja"),
        ("sentence-embedding", "tokenizer_config.json"),
    ],
)
def test_a_chat_template_that_sentence_transformers_would_write_by_is_refused(
    classifier: Path, task: str, file: str
) -> None:
    """Where a pipeline of transformers is the reference, texts are asked as they are."""
    change(classifier / "config.json", id2label={"0": "LABEL_0"})
    assert open_source(str(classifier), task=task).task == task
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    if file.endswith(".jinja"):
        (classifier / file).write_text(template)
    else:
        change(classifier / file, chat_template=template)
    with pytest.raises(ConversionRefused, match="this model's texts by its chat template, which"):
        open_source(str(classifier), task=task)
    assert open_source(str(classifier)).task == "text-classification"


def test_modules_say_whether_texts_are_written_as_a_chat(tmp_path: Path) -> None:
    """As sentence-transformers saves an embedder whose tokenizer has a template, and reads it."""
    from sentence_transformers import SentenceTransformer

    encoder = save_encoder(tmp_path / "encoder")
    (encoder / "chat_template.jinja").write_text("{{ messages[0]['content'] }} early")
    SentenceTransformer(str(encoder), device="cpu").save(str(tmp_path / "model"))
    with pytest.raises(ConversionRefused, match="'message' out of modality_config"):
        open_source(str(tmp_path / "model"))
    settings = tmp_path / "model" / "sentence_bert_config.json"
    modalities = json.loads(settings.read_text())["modality_config"]
    del modalities["message"]
    change(settings, modality_config=modalities)
    assert open_source(str(tmp_path / "model")).head == "vector"
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    plain = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    first: Any = plain[0]
    first.processor.chat_template = None
    assert (model.encode("the train") == plain.encode("the train")).all()


@pytest.mark.parametrize("task", ["auto", "rerank", "sentence-similarity", "sentence-embedding"])
def test_a_cross_encoder_whose_score_is_made_behind_its_transformer_is_refused_by_that(
    tmp_path: Path, task: str
) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    first = Transformer(str(save_encoder(tmp_path / "encoder")))
    width = first.get_embedding_dimension()
    modules = [first, Pooling(width, "cls"), Dense(width, 1, module_output_name="scores")]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path / "scorer"))
    with pytest.raises(ConversionRefused, match="has 'Pooling', and a CrossEncoder is served"):
        open_source(str(tmp_path / "scorer"), task=task)


@pytest.mark.parametrize("task", ["auto", "rerank", "sentence-similarity"])
def test_a_cross_encoder_with_a_default_prompt_is_refused(tmp_path: Path, task: str) -> None:
    from sentence_transformers import CrossEncoder

    base = save_model("bert", tmp_path / "base", num_labels=1)
    model = CrossEncoder(
        str(base), device="cpu", prompts={"q": "query: ", "none": ""}, default_prompt_name="q"
    )
    model.save_pretrained(str(tmp_path / "model"))
    said = "a CrossEncoder with a default prompt .* set default_prompt_name to null in a copy"
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(tmp_path / "model"), task=task)
    assert open_source(str(tmp_path / "model"), task="text-classification").head == "sequence"
    settings = tmp_path / "model" / "config_sentence_transformers.json"
    change(settings, prompts={"q": "query: ", "none": "", "null": None})
    change(settings, default_prompt_name="other")
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(tmp_path / "model"), task=task)
    for name in ("none", "null", None):
        change(settings, default_prompt_name=name)
        assert open_source(str(tmp_path / "model"), task=task).head == "sequence"


@pytest.mark.parametrize("task", ["auto", "rerank", "sentence-embedding"])
def test_a_cross_encoder_of_yes_and_no_is_refused_by_its_module(tmp_path: Path, task: str) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    first = Transformer(
        str(save_model("qwen3", tmp_path / "model", "ForCausalLM")),
        transformer_task="text-generation",
    )
    modules = [first, LogitScore(true_token_id=50, false_token_id=51)]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path / "scorer"))
    with pytest.raises(ConversionRefused, match="has 'LogitScore', and a CrossEncoder is served"):
        open_source(str(tmp_path / "scorer"), task=task)
    rows = json.loads((tmp_path / "scorer" / "modules.json").read_text())
    (tmp_path / "scorer" / "modules.json").write_text(json.dumps(rows[:1]))
    with pytest.raises(ConversionRefused, match="has a Transformer for text-generation, and"):
        open_source(str(tmp_path / "scorer"), task=task)


@pytest.mark.parametrize("module", ["WeightedLayerPooling", "LSTM", "CNN", "Own"])
def test_a_module_that_is_not_served_is_refused(tmp_path: Path, module: str) -> None:
    model = sentence_model(tmp_path)
    rows = json.loads((model / "modules.json").read_text())
    rows.insert(1, {"idx": 1, "path": "", "type": f"sentence_transformers.models.{module}"})
    (model / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(ConversionRefused, match=f"modules.json has '{module}', which is not serve"):
        open_source(str(model))


@pytest.mark.parametrize(
    ("settings", "task", "head"),
    [
        ({}, "sentence-embedding", "vector"),
        ({"model_type": "CrossEncoder"}, "rerank", "sequence"),
        ({}, "feature-extraction", "token_vectors"),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_module_of_the_models_own_code_is_refused_for_every_head(
    tmp_path: Path, settings: dict[str, Any], task: str, head: str, at: int
) -> None:
    model = sentence_model(tmp_path, **settings)
    change(model / "config.json", id2label={"0": "LABEL_0"})
    rows = json.loads((model / "modules.json").read_text())
    # A cross-encoder has no pooling.
    served = rows[:1] if head == "sequence" else rows
    (model / "modules.json").write_text(json.dumps(served))
    assert open_source(str(model), task=task).head == head
    rows[at]["type"] = name = rows[at]["type"].replace("sentence_transformers.models", "own_code")
    (model / "modules.json").write_text(json.dumps(rows))
    (model / "own_code.py").write_text("raise SystemExit")
    with pytest.raises(ConversionRefused, match=f"'{name}', .* code of their own are not loaded"):
        open_source(str(model), task=task)


@pytest.mark.parametrize("written", ["", "3", "[[]]", '[{"idx": 0, "path": ""}]'])
def test_a_list_of_modules_that_is_none_is_refused(tmp_path: Path, written: str) -> None:
    model = sentence_model(tmp_path)
    (model / "modules.json").write_text(written)
    with pytest.raises(ConversionRefused, match=r"modules\.json is no list of modules"):
        open_source(str(model))


@pytest.mark.parametrize("prompts", [{"query": "query: "}, {"query": "", "document": ""}, None])
def test_a_pooling_that_leaves_the_prompt_out_is_refused(
    tmp_path: Path, prompts: dict[str, str] | None
) -> None:
    """Also without prompts of its own: a request's `prompt` would be pooled over."""
    model = sentence_model(tmp_path, prompts=prompts)
    change(model / "1_P" / "config.json", include_prompt=False)
    with pytest.raises(ConversionRefused, match="include_prompt"):
        open_source(str(model))
    change(model / "1_P" / "config.json", include_prompt=True)
    assert open_source(str(model)).head == "vector"


@pytest.mark.parametrize("size", ["base", "large", "xl"])
def test_models_that_are_pooled_without_prompts_by_their_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    model = sentence_model(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(model))
    with pytest.raises(ConversionRefused, match="include_prompt"):
        open_source(f"hkunlp/instructor-{size}")
    assert open_source("sentence-transformers/instructions").head == "vector"


def test_no_padding_token_is_refused(classifier: Path) -> None:
    change(classifier / "tokenizer_config.json", pad_token=None)
    (classifier / "special_tokens_map.json").unlink(missing_ok=True)
    change(classifier / "config.json", pad_token_id=None)
    with pytest.raises(ConversionRefused, match="pad_token"):
        open_source(str(classifier))


def test_a_padding_token_that_the_embeddings_have_no_row_for_is_refused(classifier: Path) -> None:
    """As it is where a tokenizer without one is given a name that no token has."""
    tokenizer = Library.from_file(str(classifier / "tokenizer.json"))
    rows = tokenizer.get_vocab_size()
    change(classifier / "config.json", vocab_size=rows)
    assert open_source(str(classifier)).tokenizer.pad_id == 0
    change(classifier / "tokenizer_config.json", pad_token="<|new|>")
    said = rf"token '<\|new\|>' has the id {rows}, and the model's embeddings have {rows} rows; set"
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(classifier))
    change(classifier / "config.json", vocab_size=rows + 1)
    assert open_source(str(classifier)).tokenizer.pad_id == rows


@pytest.mark.parametrize("written", [7, None])
def test_a_decoders_classifier_that_takes_another_token_for_padding_is_refused(
    tmp_path: Path, classifier: Path, written: int | None
) -> None:
    decoder = save_model("qwen3", tmp_path / "decoder")
    pad = open_source(str(decoder)).tokenizer.pad_id
    change(decoder / "config.json", pad_token_id=written)
    said = rf"pad_token_id is {written}, .* set pad_token_id in config\.json to {pad}"
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(decoder))
    assert open_source(str(decoder), task="feature-extraction").tokenizer.pad_id == pad
    # Its classifier reads the first token, wherever the last one is.
    change(classifier / "config.json", pad_token_id=written)
    assert open_source(str(classifier)).tokenizer.pad_id == 0


@pytest.mark.parametrize(
    ("kind", "place"),
    [("Gemma3Text", "pad_token_id"), ("Gemma3", "text_config.pad_token_id")],
)
def test_a_decoders_padding_id_is_read_where_its_class_reads_it(
    tmp_path: Path, kind: str, place: str
) -> None:
    """Gemma 3 keeps it beside the text's other sizes, and its text alone has no class that writes
    by the same name."""
    decoder = save_model("qwen3", tmp_path / "decoder")
    pad = open_source(str(decoder)).tokenizer.pad_id

    def configure(written: int | None) -> None:
        sizes = {"vocab_size": 400, "pad_token_id": written, "num_labels": 2}
        made = getattr(transformers, f"{kind}Config")(
            **({"text_config": sizes} if "." in place else sizes),
            architectures=[f"{kind}ForSequenceClassification"],
        )
        (decoder / "config.json").write_text(made.to_json_string(use_diff=False), "utf-8")

    for other in (pad + 1, None):
        configure(other)
        said = rf"{place} is {other}, .* set {place} in config\.json to {pad}"
        with pytest.raises(ConversionRefused, match=said):
            open_source(str(decoder))
    configure(pad)
    assert open_source(str(decoder)).tokenizer.pad_id == pad


def test_a_classifier_that_looks_for_no_padding_may_have_another_id(tmp_path: Path) -> None:
    """BART's reads what stands at the end's own token, though there is a decoder of that name."""
    model = save_model("bart", tmp_path / "model")
    change(model / "config.json", pad_token_id=7, is_encoder_decoder=False)
    assert open_source(str(model)).tokenizer.pad_id != 7


def test_a_tokenizer_with_more_tokens_than_the_embeddings_have_rows(classifier: Path) -> None:
    library = Library.from_file(str(classifier / "tokenizer.json"))
    size = library.get_vocab_size()
    for rows, known in ((size + 1, None), (size, None), (size - 1, size - 1)):
        change(classifier / "config.json", vocab_size=rows)
        assert tokens_of(open_source(str(classifier)), None, ()).known_ids == known


def test_a_tokenizer_that_may_be_another_models_is_remarked_on(classifier: Path) -> None:
    size = open_source(str(classifier)).tokenizer.ids
    for rows, said in ((3 * size, 0), (3 * size + 1, 1)):
        change(classifier / "config.json", vocab_size=rows)
        source = open_source(str(classifier))
        remarks = remarks_of(source, tokens_of(source, None, ()), None)
        found = [remark for remark in remarks if "may be another model's" in remark]
        assert len(found) == said
        for remark in found:
            assert f"has {size} tokens, and the model's embeddings have {rows} rows" in remark


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_its_tokenizer_is_refused(family: str, tmp_path: Path) -> None:
    """transformers makes one of special tokens alone, to which every text is the same."""
    model = save_model(family, tmp_path / "model")
    # Its class is named there, so that it alone may lead to another one.
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
        with pytest.raises(ConversionRefused, match=r"; copy the model's tokenizer\.json and"):
            open_source(str(model))


@pytest.mark.parametrize("name", ["T5Tokenizer", "MBartTokenizer", "SplinterTokenizer"])
def test_a_vocabulary_of_what_its_class_makes_up_is_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    change(tmp_path / "tokenizer_config.json", tokenizer_class=name)
    with pytest.raises(ConversionRefused, match="no vocabulary there, only special tokens"):
        read_tokenizer(tmp_path)


def test_added_tokens_are_no_vocabulary(tmp_path: Path) -> None:
    """tokenizer_config.json has them where tokenizer.json was left behind; a text has none."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    written = ("<|endoftext|>", True), ("<tool_call>", False), ("</tool_call>", False)
    added = {
        str(7 + number): {"content": token, "special": special}
        for number, (token, special) in enumerate(written)
    }
    change(tmp_path / "tokenizer_config.json", added_tokens_decoder=added)
    with pytest.raises(ConversionRefused, match="no vocabulary there, only special tokens"):
        read_tokenizer(tmp_path, pads=False)


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("known", [False, True], ids=["added", "vocabulary"])
def test_a_small_alphabet_is_a_vocabulary(special: bool, known: bool, tmp_path: Path) -> None:
    letters = "ACGT"
    known_letters = letters if known else ""
    vocabulary = {token: number for number, token in enumerate(("[PAD]", "[UNK]", *known_letters))}
    library = Library(WordLevel(vocabulary, unk_token="[UNK]"))
    library.add_tokens([AddedToken(letter, special=special) for letter in letters])
    PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert read_tokenizer(tmp_path).library().encode("GATTACA").ids == [4, 2, 5, 5, 2, 3, 2]


@pytest.mark.parametrize("name", ["ByT5Tokenizer", "CanineTokenizer"])
def test_a_tokenizer_that_needs_no_file_is_refused_for_being_pythons(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    change(tmp_path / "tokenizer_config.json", tokenizer_class=name)
    with pytest.raises(ConversionRefused, match="is written in Python"):
        read_tokenizer(tmp_path)


def test_a_vocabulary_that_is_no_models_is_refused(tmp_path: Path) -> None:
    """The tokenizers library fails at a text where the token is missing that stands for others."""
    model = save_model("mpnet", tmp_path / "model")
    (model / "tokenizer.json").unlink()
    (model / "vocab.txt").write_text("\n".join(("<s>", "<pad>", "</s>", "one", "two", "<mask>")))
    with pytest.raises(ConversionRefused, match=r"Missing \[UNK\] token .*; copy the model's"):
        open_source(str(model))


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionRefused, match=r"config\.json"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("architecture", ["SequenceClassification", "TokenClassification"])
def test_masks_are_not_filled_by_a_model_of_another_head(
    classifier: Path, architecture: str
) -> None:
    named = f"BertFor{architecture}"
    change(classifier / "config.json", architectures=[named])
    with pytest.raises(ConversionRefused, match=f"is {named} and has no trained head for fill-m"):
        open_source(str(classifier), task="fill-mask")
    # Those have the weights, or may have them.
    for other in ("BertForPreTraining", "BertLMHeadModel", "BertModel"):
        change(classifier / "config.json", architectures=[other])
        assert open_source(str(classifier), task="fill-mask").head == "masks"
    change(classifier / "config.json", architectures=[named], is_encoder_decoder=True)
    assert open_source(str(classifier), task="fill-mask").head == "masks"


def test_a_file_is_told_to_name_its_folder(classifier: Path) -> None:
    with pytest.raises(ConversionRefused, match=r"is a file; name .*holds it, '.*/model'"):
        open_source(str(classifier / "model.safetensors"))


def test_a_path_that_is_not_there_is_never_asked_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConversionRefused, match="does not exist"):
        open_source(str(tmp_path / "absent"))
    with pytest.raises(ConversionRefused, match="--revision"):
        open_source(str(tmp_path), revision="main")


def test_hub_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConversionRefused, match="HF_HUB_OFFLINE is set; .* copy the model into"):
        open_source("some-owner/some-model")


@pytest.fixture
def refusing() -> Iterator[int]:
    """The port of a server that refuses who it is to pass on (CONNECT), and hangs up on others."""

    class Refusing(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if self.rfile.readline().startswith(b"CONNECT"):
                self.wfile.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:{port}"}, "RemoteProtocolError"),
        (
            {"HF_ENDPOINT": "https://hub.invalid", "HTTPS_PROXY": "http://127.0.0.1:{port}"},
            "ProxyError",
        ),
        ({"HF_ENDPOINT": "https://hub.invalid", "HTTPS_PROXY": "http://a:b"}, "InvalidURL"),
    ],
)
def test_a_hub_that_breaks_off_or_a_proxy_that_refuses_is_told_in_one_line(
    refusing: int, environment: dict[str, str], error: str, tmp_path: Path
) -> None:
    """The package reads its environment once, so a process of its own asks."""
    of_others = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "hf_hub_offline")
    kept = {name: value for name, value in os.environ.items() if name.lower() not in of_others}
    given = {name: value.format(port=refusing) for name, value in environment.items()}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "transformer_serving.desk.cli"),
            *("convert", "some-owner/some-model", "--output", str(tmp_path / "bundle")),
        ],
        env={**kept, "HF_HOME": str(tmp_path / "hub"), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: model 'some-owner/some-model' is neither a folder nor reachable")
    assert f"({error})" in line


def test_pickled_weights_are_read_only_where_that_is_asked_for(classifier: Path) -> None:
    (classifier / "model.safetensors").rename(classifier / "pytorch_model.bin")
    with pytest.raises(ConversionRefused, match="'pytorch_model.bin' is a pickle.*--allow-pickle"):
        open_source(str(classifier))
    torch.save({}, classifier / "pytorch_model.bin")
    assert open_source(str(classifier), allow_pickle=True).folder == classifier


def test_pickles_beside_safetensors_and_of_a_training_are_not_read(classifier: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (classifier / name).write_bytes(b"")
    open_source(str(classifier))


def test_a_module_of_sentence_transformers_may_be_a_pickle(classifier: Path) -> None:
    dense = classifier / "2_Dense"
    dense.mkdir()
    (dense / "pytorch_model.bin").write_bytes(b"")
    (classifier / "modules.json").write_text('[{"path": ""}, {"path": "2_Dense"}]')
    with pytest.raises(ConversionRefused, match="'2_Dense/pytorch_model.bin' is a pickle"):
        open_source(str(classifier))


@pytest.mark.parametrize("listed", [{}, {"a": "model.safetensors"}])
def test_an_index_stands_for_nothing_in_a_module_that_reads_none(
    classifier: Path, listed: dict[str, str]
) -> None:
    dense = classifier / "2_Dense"
    dense.mkdir()
    (dense / "pytorch_model.bin").write_bytes(b"")
    (dense / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    row = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (classifier / "modules.json").write_text(json.dumps([{"path": ""}, row]))
    with pytest.raises(ConversionRefused, match="'2_Dense/pytorch_model.bin' is a pickle"):
        open_source(str(classifier))


@pytest.mark.parametrize("name", ["x.bin", "sub/x.bin", "x", "/x.pt"])
def test_an_index_of_safetensors_names_no_pickle(classifier: Path, name: str) -> None:
    """transformers reads each file by its own suffix."""
    (classifier / "model.safetensors").rename(classifier / "a.safetensors")
    index = {"weight_map": {"a": "a.safetensors", "b": name}}
    (classifier / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConversionRefused, match=f"names '{name}', which is no safetensors, and"):
        open_source(str(classifier))
    del index["weight_map"]["b"]
    (classifier / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_source(str(classifier)).folder == classifier


def test_safetensors_of_another_name_do_not_stand_for_the_weights(classifier: Path) -> None:
    (classifier / "model.safetensors").rename(classifier / "x.safetensors")
    (classifier / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConversionRefused, match="'pytorch_model.bin' is a pickle"):
        open_source(str(classifier))


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_is_refused_with_the_way_to_a_whole_model(
    classifier: Path, weights: str
) -> None:
    adapter = classifier / "adapter_config.json"
    adapter.write_text('{"peft_type": "LORA"}')
    (classifier / weights).write_bytes(b"")
    beside = "has an adapter .* beside its weights, .* delete adapter_config.json from a copy"
    for opened in (open_source, open_language_model):
        with pytest.raises(ConversionRefused, match=beside):
            opened(str(classifier))
    adapter.unlink()
    assert open_source(str(classifier)).head == "sequence"
    adapter.write_text("{}")
    for name in ("config.json", "model.safetensors"):
        (classifier / name).unlink()
    alone = r"'model' is an adapter .* no whole model; merge it .* merge_and_unload\(\)"
    for opened in (open_source, open_language_model):
        with pytest.raises(ConversionRefused, match=alone):
            opened(str(classifier))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A repository as a folder, and the snapshot that what is downloaded of it comes into."""
    repository, snapshot = tmp_path / "repository", tmp_path / "snapshot"

    def download(
        _model: str,
        revision: str | None = None,
        allow_patterns: list[str] | None = None,
        ignore_patterns: list[str] | None = None,
    ) -> str:
        paths = [path for path in repository.rglob("*") if path.is_file()]
        names = [path.relative_to(repository).as_posix() for path in paths]
        for name in filter_repo_objects(
            names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, snapshot / name)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return repository, snapshot


def test_pickles_are_downloaded_for_the_folders_that_have_no_safetensors(
    hub: tuple[Path, Path],
) -> None:
    repository, snapshot = hub
    sentence_model(repository)
    rows = json.loads((repository / "modules.json").read_text())
    dense = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (repository / "modules.json").write_text(json.dumps([*rows, dense]))
    (repository / "2_Dense").mkdir()
    (repository / "2_Dense" / "config.json").write_text("{}")
    others = ("consolidated.safetensors", "original/model.pth", "pytorch_model.bin", "model.gguf")
    for name in (*others, "2_Dense/pytorch_model.bin"):
        (repository / name).parent.mkdir(exist_ok=True)
        torch.save({}, repository / name)
    with pytest.raises(ConversionRefused, match=r"no '2_Dense/model\.safetensors'.*--allow-pickle"):
        open_source("some-owner/some-model")
    assert not (snapshot / "2_Dense" / "pytorch_model.bin").exists()
    assert open_source("some-owner/some-model", allow_pickle=True).folder == snapshot
    assert (snapshot / "2_Dense" / "pytorch_model.bin").exists()
    assert not any((snapshot / name).exists() for name in others)


def test_an_older_layout_is_asked_for_no_weights_outside_its_modules(
    hub: tuple[Path, Path],
) -> None:
    repository, snapshot = hub
    save_older_layout(repository.parent).rename(repository)
    assert open_source("some-owner/some-model").encoder == snapshot / "0_Transformer"


def test_pickles_of_the_model_itself_are_downloaded_where_that_is_asked_for(
    hub: tuple[Path, Path],
) -> None:
    repository, snapshot = hub
    save_classifier(repository)
    (repository / "model.safetensors").unlink()
    torch.save({}, repository / "pytorch_model.bin")
    (repository / "x.safetensors").write_bytes(b"")
    with pytest.raises(ConversionRefused, match=r"no 'model\.safetensors'.*--allow-pickle"):
        open_source("some-owner/some-model")
    open_source("some-owner/some-model", allow_pickle=True)
    assert (snapshot / "pytorch_model.bin").exists()


def test_a_pickle_of_another_name_beside_a_decoy_is_not_read(hub: tuple[Path, Path]) -> None:
    """An index of pickles is downloaded, and so is what it names, but for pickles' own names."""
    repository, snapshot = hub
    sentence_model(repository)
    torch.save({}, repository / "weights.dat")
    change(repository / "pytorch_model.bin.index.json", weight_map={"a": "weights.dat"})
    assert open_source("some-owner/some-model").folder == snapshot
    assert (snapshot / "weights.dat").exists()
    change(repository / "sentence_bert_config.json", model_args={"use_safetensors": False})
    with pytest.raises(ConversionRefused, match="model_args of .* has 'use_safetensors'"):
        open_source("some-owner/some-model")


def test_both_downloads_are_of_one_commit(
    hub: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that moves between them would bring the pickles into another snapshot."""
    repository, snapshot = hub
    save_classifier(repository)
    (repository / "model.safetensors").unlink()
    torch.save({}, repository / "pytorch_model.bin")
    asked: list[str | None] = []
    download: Any = huggingface_hub.snapshot_download

    def noted(model: str, revision: str | None = None, **patterns: Any) -> str:
        asked.append(revision)
        return str(download(model, revision, **patterns))

    monkeypatch.setattr("huggingface_hub.snapshot_download", noted)
    source = open_source("some-owner/some-model", revision="main", allow_pickle=True)
    assert asked == ["main", snapshot.name] == ["main", source.revision]


def test_an_adapter_on_the_hub_is_not_asked_for_pickles(hub: tuple[Path, Path]) -> None:
    repository, _ = hub
    save_tokenizer(repository)
    (repository / "adapter_config.json").write_text("{}")
    with pytest.raises(ConversionRefused, match="is an adapter .* no whole model"):
        open_source("some-owner/some-model")


def test_a_cache_made_of_links_is_read(classifier: Path, tmp_path: Path) -> None:
    """As the Hub's cache is: each file of a snapshot is a link to its bytes."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in classifier.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert open_source(str(snapshot)).task == open_source(str(classifier)).task


# Text families and what one of each has of its own beside small sizes.
_BY_PADDING_ID: dict[str, dict[str, Any]] = {
    "roberta": {}, "xlm-roberta": {}, "xlm-roberta-xl": {}, "roberta-prelayernorm": {},
    "camembert": {}, "xmod": {"default_language": "en_XX"}, "mpnet": {},
    "longformer": {"attention_window": 4}, "data2vec-text": {}, "ibert": {},
    "luke": {"entity_vocab_size": 8, "entity_emb_size": 16}, "lilt": {},
    "markuplm": {}, "layoutlmv3": {"visual_embed": False, "coordinate_size": 4, "shape_size": 4},
    "esm": {"position_embedding_type": "absolute", "mask_token_id": 4},
}  # fmt: skip
# These read more than texts, or write them: none is served.
_NO_ENCODERS = {
    *("altclip", "bridgetower", "clap", "evolla", "fsmt", "kosmos2", "kosmos2-5", "m2m-100"),
    *("nllb-moe", "seamless-m4t", "seamless-m4t-v2", "speech-to-text", "speecht5", "trocr"),
}


@pytest.mark.parametrize("family", _BY_PADDING_ID)
@pytest.mark.filterwarnings("ignore")
def test_a_text_is_as_long_as_the_positions_behind_the_padding_id(
    tmp_path: Path, family: str
) -> None:
    """Without the tokenizer's own limit, and as the model itself counts."""
    config = transformers.AutoConfig.for_model(
        family, vocab_size=120, hidden_size=24, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=22, pad_token_id=0, **_BY_PADDING_ID[family],
    )  # fmt: skip
    config.save_pretrained(str(tmp_path))
    save_tokenizer(tmp_path)
    change(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    save_file({}, str(tmp_path / "model.safetensors"))
    longest = open_source(str(tmp_path), task="feature-extraction").max_length
    assert longest is not None
    model = transformers.AutoModel.from_config(config).eval()
    with torch.inference_mode():
        model(input_ids=torch.full((1, longest), 5), attention_mask=torch.ones(1, longest))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, longest + 1), 5))


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt"])
@pytest.mark.filterwarnings("ignore")
def test_a_text_is_as_long_as_the_positions_that_a_family_calls_otherwise(
    tmp_path: Path, family: str
) -> None:
    config = transformers.AutoConfig.for_model(
        family, vocab_size=120, n_embd=24, n_layer=1, n_head=2, n_positions=22
    )
    config.save_pretrained(str(tmp_path))
    save_tokenizer(tmp_path)
    change(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    save_file({}, str(tmp_path / "model.safetensors"))
    source = open_source(str(tmp_path), task="feature-extraction")
    assert source.max_length == 22
    model = transformers.AutoModel.from_config(config).eval()
    with torch.inference_mode():
        model(input_ids=torch.full((1, 22), 5))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, 23), 5))


def test_where_no_file_says_a_longest_text_any_may_be_asked_for(tmp_path: Path) -> None:
    """T5's positions are relative, whatever n_positions its older files have."""
    config = transformers.AutoConfig.for_model("t5", vocab_size=120, n_positions=20)
    config.architectures = ["T5EncoderModel"]
    config.save_pretrained(str(tmp_path))
    save_tokenizer(tmp_path)
    save_file({}, str(tmp_path / "model.safetensors"))
    assert open_source(str(tmp_path), task="sentence-embedding").max_length == POSITIONS
    change(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    source = open_source(str(tmp_path), task="sentence-embedding", pooling="mean")
    assert source.max_length is None
    tokens = tokens_of(source, None, ())
    assert tokens.max_length == 512
    [remark] = remarks_of(source, tokens, None)
    assert "says how long a text may be: the endpoint takes up to 512 tokens" in remark
    assert "longer ones are cut; --max-length N takes longer ones" in remark
    assert tokens_of(source, 600, ()).max_length == 600
    assert remarks_of(source, tokens_of(source, 600, ()), 600) == ()


def test_no_family_that_counts_positions_from_the_padding_id_is_left_out() -> None:
    folder = Path(transformers.__file__).parent / "models"
    counting = {
        file.parent.name.replace("_", "-")
        for file in folder.glob("*/modeling_*.py")
        if "create_position_ids_from_input_ids" in file.read_text("utf-8")
    }
    known = {*_BY_PADDING_ID, *_NO_ENCODERS} - {"data2vec-text"} | {"data2vec"}
    assert counting - known == set()
