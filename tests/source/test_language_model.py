"""What is read of a language model's folder before anything of it is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Phi3Config,
)

from tests.language_models import POSITIONS, WINDOW, save_language_model
from transformer_serving.contract.generation import Sampling
from transformer_serving.desk.conversion.language_model import endpoint_of
from transformer_serving.desk.export.endpoint_json import LIMITS
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.generation_defaults import _HARMLESS, _SERVED
from transformer_serving.desk.source.language_model import open_language_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model("mistral", tmp_path_factory.mktemp("model") / "tiny-mistral")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to change; its weights are the first one's."""
    copy = tmp_path / saved.name
    copy.mkdir()
    for path in saved.iterdir():
        (copy / path.name).hardlink_to(path)
    return copy


def change(folder: Path, name: str, **fields: Any) -> None:
    path = folder / name
    values = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.unlink(missing_ok=True)
    path.write_text(json.dumps({**values, **fields}))


def test_limits_and_defaults_of_a_plain_folder(folder: Path) -> None:
    source = open_language_model(str(folder))
    generation = source.generation
    assert (source.name, source.revision, source.model_type) == ("tiny-mistral", None, "mistral")
    assert source.window == WINDOW
    assert (generation.max_positions, generation.max_new_tokens) == (POSITIONS, POSITIONS - 1)
    assert generation.default_new_tokens == 256
    assert generation.sampling == Sampling(False, 1.0, 1.0, 50, 1.0)
    assert generation.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert generation.chat_template is None
    assert len(generation.eos_ids) == 1
    # GPT-2 has none either: nothing is ever padded.
    assert source.tokenizer.pad_token == ""


def test_a_window_counts_where_a_layer_has_it(folder: Path) -> None:
    for fields in (
        {"use_sliding_window": False},
        {"layer_types": ["full_attention", "full_attention"]},
        {"attention_layers": ["global", "global"]},
    ):
        other = folder.with_name("-".join(fields))
        shutil.copytree(folder, other)
        change(other, "config.json", **fields)
        assert open_language_model(str(other)).window is None
    change(folder, "config.json", layer_types=["full_attention", "sliding_attention"])
    assert open_language_model(str(folder)).window == WINDOW


def test_fewer_positions_than_the_models_own_are_remarked_on_unless_asked_for(
    folder: Path,
) -> None:
    change(folder, "config.json", max_position_embeddings=32768)
    source = open_language_model(str(folder))
    assert source.generation.max_positions == 8192
    [remark] = source.remarks
    assert "up to 8192 tokens, the model up to 32768; more are refused with 413; --max" in remark
    assert "--max-length 32768 takes them all" in remark
    assert open_language_model(str(folder), max_length=8192).remarks == ()
    change(folder, "config.json", max_position_embeddings=8192)
    assert open_language_model(str(folder)).remarks == ()


def test_special_tokens_that_a_prompt_writes_out_may_be_words(folder: Path) -> None:
    assert not endpoint_of(open_language_model(str(folder)), LIMITS).tokens.split_special_tokens
    change(folder, "tokenizer_config.json", split_special_tokens=True)
    source = open_language_model(str(folder))
    assert endpoint_of(source, LIMITS).tokens.split_special_tokens
    assert (
        source.tokenizer.library().encode("</s>").ids
        == (AutoTokenizer.from_pretrained(str(folder))("</s>")["input_ids"])
    )


def test_a_tokenizer_with_more_tokens_than_the_model_knows(folder: Path) -> None:
    highest = open_language_model(str(folder)).tokenizer.ids
    for rows, known in ((highest, None), (highest - 1, highest - 1)):
        change(folder, "config.json", vocab_size=rows)
        assert endpoint_of(open_language_model(str(folder)), LIMITS).tokens.known_ids == known


def test_a_tokenizer_that_may_be_another_models_is_remarked_on(folder: Path) -> None:
    change(folder, "config.json", vocab_size=100 * open_language_model(str(folder)).tokenizer.ids)
    [remark] = open_language_model(str(folder)).remarks
    assert "may be another model's" in remark


def test_a_model_without_its_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConversionRefused, match=r"; copy the model's tokenizer\.json and"):
        open_language_model(str(folder))


def test_what_generation_config_and_the_tokenizer_say(folder: Path) -> None:
    change(
        folder, "generation_config.json", do_sample=True, temperature=0.7, top_k=0, top_p=0.9,
        repetition_penalty=1.1, eos_token_id=[2, 5, 10**6], max_new_tokens=20, min_new_tokens=3,
        min_p=0.05,
    )  # fmt: skip
    change(folder, "tokenizer_config.json", chat_template="{{ messages }}")
    generation = open_language_model(str(folder), max_length=100, name="other").generation
    assert generation.sampling == Sampling(True, 0.7, 0.9, 0, 1.1, min_new_tokens=3, min_p=0.05)
    assert not generation.top_k_is_unsaid
    assert generation.eos_ids == (2, 5)
    assert generation.default_new_tokens == 20
    assert generation.max_positions == 100
    assert generation.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "cannot be read (Expected an expression"),
        ("{{ messages[0].content | trimm }}", "cannot be read (No filter named 'trimm'"),
        ("{% if true %}{{ messages[0].content | trimm }}{% endif %}", "fails on a user's message"),
        ("{{ messages[0].content + bos_tokn }}", "fails on a user's message ('bos_tokn' is und"),
        ("{{ messages[0].contents }}", "writes nothing of what a message says; mend it"),
    ],
)
def test_a_chat_template_that_takes_no_conversation_is_refused(
    folder: Path, template: str, said: str
) -> None:
    change(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ConversionRefused) as refusal:
        open_language_model(str(folder))
    assert f"the model's chat template {said}" in str(refusal.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token + messages[0].content }}",
        "{% for part in messages[0].content %}{{ part.text }}{% endfor %}",
        "{% if messages[0].role != 'system' %}{{ raise_exception('begin with it') }}{% endif %}",
    ],
)
def test_a_chat_template_of_any_form_is_kept(folder: Path, template: str) -> None:
    """And one that wants another message than the one that is tried."""
    change(folder, "tokenizer_config.json", chat_template=template)
    assert open_language_model(str(folder)).generation.chat_template == template


def test_numbers_that_cannot_be_are_taken_as_unsaid(folder: Path) -> None:
    change(
        folder, "generation_config.json", temperature=0.0, top_p=2, top_k=None, min_new_tokens=-1,
        min_p=1.5,
    )  # fmt: skip
    generation = open_language_model(str(folder)).generation
    assert generation.sampling == Sampling(False, 1.0, 1.0, 50, 1.0)
    assert generation.top_k_is_unsaid


def without_generation_config(folder: Path, **fields: Any) -> None:
    """A model of before that file, which has what it generates by in config.json."""
    (folder / "generation_config.json").unlink()
    change(folder, "config.json", **fields)


def test_what_config_json_says_where_there_is_no_generation_config(folder: Path) -> None:
    """The same as transformers has of it, and nothing where the file is there."""
    fields = {
        "do_sample": True, "temperature": 0.7, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.5,
        "eos_token_id": [2, 5], "max_new_tokens": 20, "max_length": 30, "no_repeat_ngram_size": 0,
        "min_p": 0.1,
    }  # fmt: skip
    change(folder, "config.json", **fields)
    beside = open_language_model(str(folder)).generation
    assert beside.sampling == Sampling(False, 1.0, 1.0, 50, 1.0)
    without_generation_config(folder)
    generation = open_language_model(str(folder)).generation
    theirs = GenerationConfig.from_pretrained(
        str(folder), config_file_name="config.json", _from_model_config=True
    )
    assert generation.sampling == Sampling(
        theirs.do_sample, theirs.temperature, theirs.top_p, theirs.top_k, theirs.repetition_penalty,
        min_p=theirs.min_p,
    )  # fmt: skip
    assert generation.sampling == Sampling(True, 0.7, 0.9, 7, 1.5, min_p=0.1)
    assert not generation.top_k_is_unsaid
    assert list(generation.eos_ids) == theirs.eos_token_id
    assert generation.default_new_tokens == theirs.max_new_tokens == 20


@pytest.mark.parametrize("file", [None, {}, {"eos_token_id": None}, {"eos_token_id": 4}])
@pytest.mark.parametrize("written", [None, 2])
def test_a_text_ends_where_transformers_ends_it(
    folder: Path, file: dict[str, Any] | None, written: int | None
) -> None:
    """By what is written: its class of this config.json has an id of its own."""
    config = folder / "config.json"
    fields = json.loads(config.read_text("utf-8"))
    del fields["eos_token_id"]
    config.unlink()
    config.write_text(
        json.dumps(fields if written is None else {**fields, "eos_token_id": written})
    )
    (folder / "generation_config.json").unlink()
    if file is not None:
        change(folder, "generation_config.json", **file)
    assert AutoConfig.from_pretrained(str(folder)).eos_token_id == 2
    theirs = AutoModelForCausalLM.from_pretrained(str(folder)).generation_config.eos_token_id
    assert open_language_model(str(folder)).generation.eos_ids == (
        () if theirs is None else (theirs,)
    )
    wanted = written if file is None else file.get("eos_token_id")
    assert theirs == wanted


@pytest.mark.parametrize(
    "field", sorted(GenerationConfig().to_dict().keys() - {"_from_model_config"})
)
def test_what_transformers_takes_of_config_json_is_served_or_refused(
    folder: Path, field: str
) -> None:
    """Of every field that it knows a value that is never one of doing nothing."""
    without_generation_config(folder, **{field: {"never": "served"}})
    if field in (*_SERVED, *_HARMLESS):
        open_language_model(str(folder))
    else:
        with pytest.raises(ConversionRefused, match=f"config.json has '{field}', which"):
            open_language_model(str(folder))


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("config.json", {"architectures": ["BertForMaskedLM"]}, "serves causal language models"),
        ("generation_config.json", {"num_beams": 4}, "has 'num_beams', which the engine"),
        ("generation_config.json", {"no_repeat_ngram_size": 2}, "'no_repeat_ngram_size'"),
        *(
            ("generation_config.json", {field: value}, f"has '{field}', which the engine")
            for field, value in {
                "sequence_bias": [[[7], -10.0]],
                "exponential_decay_length_penalty": [10, 1.5],
                "encoder_repetition_penalty": 1.2,
                "presence_penalty": 1.5,
                "stop_strings": ["."],
                "epsilon_cutoff": 3e-4,
                "eta_cutoff": 3e-4,
                "top_h": 0.4,
                "watermarking_config": {"greenlist_ratio": 0.3},
                "a_field_of_tomorrow": 1,
            }.items()
        ),
    ],
)
def test_what_is_not_served_is_refused(
    folder: Path, name: str, fields: dict[str, Any], said: str
) -> None:
    change(folder, name, **fields)
    with pytest.raises(ConversionRefused, match=said):
        open_language_model(str(folder))


def test_fields_that_change_no_text_pass(folder: Path) -> None:
    """All that transformers knows, at the values that it has where nothing is said, and more."""
    change(folder, "generation_config.json", **GenerationConfig().to_dict())
    change(folder, "generation_config.json", **GenerationConfig._get_default_generation_params())
    change(
        folder, "generation_config.json", _from_model_config=True, pad_token_id=0, max_length=4096,
        cache_implementation="hybrid", use_cache=False, renormalize_logits=True, stop_strings=[],
    )  # fmt: skip
    assert open_language_model(str(folder)).generation.sampling.top_k == 50


def phi3(folder: Path, rope: dict[str, Any]) -> None:
    (folder / "config.json").unlink()
    Phi3Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=256,
        original_max_position_embeddings=32,
        rope_parameters=rope,
        architectures=["Phi3ForCausalLM"],
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ).save_pretrained(str(folder))


def test_positions_end_where_longrope_changes_its_factors(folder: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    phi3(folder, {"rope_type": "longrope", "rope_theta": 1e4, **factors})
    assert open_language_model(str(folder)).generation.max_positions == 32
    assert open_language_model(str(folder), max_length=20).generation.max_positions == 20
    with pytest.raises(ConversionRefused, match=r"from 2 to 32 .* \(longrope\), got 33"):
        open_language_model(str(folder), max_length=33)
    phi3(folder, {"rope_type": "default", "rope_theta": 1e4})
    assert open_language_model(str(folder)).generation.max_positions == 256


def test_more_positions_than_the_model_has_are_refused(folder: Path) -> None:
    with pytest.raises(ConversionRefused, match=f"from 2 to {POSITIONS} for this model, got 513"):
        open_language_model(str(folder), max_length=513)
    with pytest.raises(ConversionRefused, match="does not exist"):
        open_language_model("/nowhere/at/all")
