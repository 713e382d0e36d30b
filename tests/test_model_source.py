"""What is read from a model folder, and which models are refused before torch is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.tiny_models import POSITIONS, save_classifier, save_encoder, save_roberta
from transformer_serving.model_source import open_source
from transformer_serving.refusal import ConversionRefused


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return save_classifier(tmp_path / "model")


def change(path: Path, **fields: Any) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, **fields}))


def test_classifier_folder_is_read(classifier: Path) -> None:
    source = open_source(str(classifier))
    assert source.task == "text-classification"
    assert source.labels == ("bad", "fair", "good")
    assert source.problem_type == "single_label"
    assert source.max_length == POSITIONS
    assert source.takes_token_types
    assert (source.name, source.revision) == ("model", None)
    assert (source.tokenizer.pad_id, source.tokenizer.pad_token) == (0, "[PAD]")


def test_tokenizer_neither_pads_nor_cuts(classifier: Path) -> None:
    assert json.loads((classifier / "tokenizer.json").read_text())["truncation"] is not None
    tokenizer = Tokenizer.from_buffer(open_source(str(classifier)).tokenizer.content)
    assert tokenizer.padding is None
    assert tokenizer.truncation is None
    assert len(tokenizer.encode("the train " * 30).ids) == 62


def test_roberta_counts_positions_from_its_padding_id(tmp_path: Path) -> None:
    source = open_source(str(save_roberta(tmp_path)))
    assert source.max_length == POSITIONS - 1
    assert not source.takes_token_types


def test_the_smallest_length_of_the_files_counts(classifier: Path) -> None:
    change(classifier / "tokenizer_config.json", model_max_length=30)
    assert open_source(str(classifier)).max_length == 30
    change(classifier / "sentence_bert_config.json", max_seq_length=20)
    assert open_source(str(classifier)).max_length == 30
    assert open_source(str(classifier), task="sentence-embedding").max_length == 20


def test_multi_label_and_single_column_get_sigmoid(classifier: Path) -> None:
    change(classifier / "config.json", problem_type="multi_label_classification")
    assert open_source(str(classifier)).problem_type == "multi_label"
    change(classifier / "config.json", problem_type=None, id2label={"0": "toxic"})
    assert open_source(str(classifier)).problem_type == "multi_label"


def test_lowercase_of_sentence_transformers_reaches_the_tokenizer(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    change(model / "sentence_bert_config.json", do_lower_case=True)
    content = open_source(str(model), task="sentence-embedding").tokenizer.content
    assert Tokenizer.from_buffer(content).encode("Train").tokens == ["[CLS]", "train", "[SEP]"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"problem_type": "regression"}, "regression"),
        ({"id2label": {"0": "same", "1": "same"}}, "one label twice"),
        ({"id2label": {"1": "one", "2": "two"}}, "0, 1, 2"),
        ({"architectures": ["BertForQuestionAnswering"]}, "--task"),
        ({"model_type": "made-up"}, "made-up"),
    ],
)
def test_models_that_cannot_be_served_are_refused(
    classifier: Path, fields: dict[str, Any], message: str
) -> None:
    change(classifier / "config.json", **fields)
    with pytest.raises(ConversionRefused, match=message) as refused:
        open_source(str(classifier))
    assert refused.value.exit_code == 2


def test_a_default_prompt_is_refused(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    rows = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (model / "modules.json").write_text(json.dumps(rows))
    change(model / "config_sentence_transformers.json", default_prompt_name="query")
    with pytest.raises(ConversionRefused, match="default_prompt_name"):
        open_source(str(model))


def test_no_padding_token_is_refused(classifier: Path) -> None:
    change(classifier / "tokenizer_config.json", pad_token=None)
    (classifier / "special_tokens_map.json").unlink(missing_ok=True)
    change(classifier / "config.json", pad_token_id=None)
    with pytest.raises(ConversionRefused, match="pad_token"):
        open_source(str(classifier))


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionRefused, match=r"config\.json"):
        open_source(str(tmp_path))


def test_a_path_that_is_not_there_is_never_asked_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConversionRefused, match="does not exist"):
        open_source(str(tmp_path / "absent"))
    with pytest.raises(ConversionRefused, match="--revision"):
        open_source(str(tmp_path), revision="main")


def test_hub_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConversionRefused, match="copy the model into a folder"):
        open_source("some-owner/some-model")
