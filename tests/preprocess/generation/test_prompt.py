"""The text of a prompt, for an engine that makes its tokens itself and adds a special one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tokenizers import (
    Tokenizer as Library,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from preprocess.generation.chat import render_chat
from preprocess.generation.engines import openvino
from preprocess.generation.prompt import Prompt, read_prompts, text_of
from preprocess.tokens import Tokenizer
from tests.preprocess.generation.test_chat import with_template
from tests.preprocess.generation.test_request import read
from tests.text_engine import fields
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Options, Sampling

# Llama 3's and Mistral's form: the first message begins with a special token, behind bos_token.
MARKED = (
    "{{ bos_token }}{% for row in messages %}{{ '[INST]' + row.content if row.role == 'user' "
    "else ' ' + row.content + eos_token }}{% endfor %}[/INST]"
)
# SentencePiece's decoder gives other spaces behind a special token than were written.
PLAIN = (
    "{{ bos_token }}{% for row in messages %}{{ row.role }} {{ row.content }}{{ eos_token }}"
    "{% endfor %}"
)
SAYING = [
    {"role": "user", "content": " tea or snow"},
    {"role": "assistant", "content": "snow "},
    {"role": "user", "content": "why"},
]


def adding_bos(library: Library) -> Library:
    special = ["<s>", "</s>", "[INST]", "[/INST]", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator(["user assistant tea or snow why"] * 20, trainer)
    library.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return library


def byte_level() -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return adding_bos(library)


def sentencepiece() -> Library:
    library = Library(models.BPE(unk_token="<unk>"))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return adding_bos(library)


@pytest.mark.parametrize("template", [MARKED, PLAIN])
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_an_engine_that_adds_bos_is_told_a_conversation_without_it(
    make: Callable[[], Library], template: str
) -> None:
    library, endpoint = make(), read_endpoint(json.dumps(fields()))
    assert endpoint.generation is not None
    made = with_template(endpoint.generation, template)
    reads = Tokenizer(str(library.to_str()).encode(), endpoint.tokens)
    wanted = read({"messages": SAYING}, endpoint)
    [prompt] = read_prompts(wanted, reads, made, endpoint.limits, with_text=True)
    assert prompt.ids.count(0) == 1
    assert prompt.text == render_chat(SAYING, made).removeprefix("<s>")
    assert library.encode(prompt.text).ids == prompt.ids


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    library, written = byte_level(), fields()
    ids = library.encode("tea").ids
    for known in (max(ids) + 1, max(ids)):
        written["tokens"]["known_ids"] = known
        endpoint = read_endpoint(json.dumps(written))
        assert endpoint.generation is not None
        reads = Tokenizer(str(library.to_str()).encode(), endpoint.tokens)
        wanted = read({"text": "tea"}, endpoint)
        if known > max(ids):
            assert read_prompts(
                wanted, reads, endpoint.generation, endpoint.limits, with_text=False
            )
            continue
        with pytest.raises(ServingError) as caught:
            read_prompts(wanted, reads, endpoint.generation, endpoint.limits, with_text=False)
        error = caught.value
        assert (error.kind.code, error.field, error.limit) == ("impossible", "text", known)


def test_many_special_tokens_in_front_are_not_tried_one_by_one() -> None:
    library, asked = byte_level(), []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return []

    assert text_of([0] * 1000, library, encode) is None
    assert len(asked) == 2


def test_sequences_of_one_prompt_have_one_array_of_it() -> None:
    prompt = Prompt([5, 6], 4)
    options = Options(4, (), Sampling(False, 1.0, 1.0, 0, 1.0), 1)
    one, other = (openvino.request(prompt, options, ()) for _ in range(2))
    assert one.inputs[0].array is other.inputs[0].array
    assert one.inputs[0].array.tolist() == [5, 6]
