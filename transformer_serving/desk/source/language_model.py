"""A causal language model on disk: its limits, its defaults, and what its chat template needs.

Nothing here imports torch: what cannot be served is refused before anything is loaded.

Tested by tests/source/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.generation import LEAST_SAMPLING, Generation, Sampling
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.config import (
    LONGEST_UNASKED,
    positions_of,
    read_model_config,
    size_of,
)
from transformer_serving.desk.source.generation_defaults import read_defaults
from transformer_serving.desk.source.model import locate_model
from transformer_serving.desk.source.pickled_weights import refuse_others, refuse_pickles
from transformer_serving.desk.source.tokenizer import (
    TokenizerFile,
    load_tokenizer,
    read_tokenizer,
)
from transformer_serving.desk.source.whole_weights import refuse_cut

ARCHITECTURES = ("ForCausalLM", "LMHeadModel")
_LONGROPE = "longrope"
# The layers with a sliding window among layer_types, and among GPT-Neo's attention_layers.
_WINDOWED = {"sliding_attention", "local"}
# What transformers' pipeline generates where nobody says how much.
_NEW_UNASKED = 256
# transformers' own defaults where its fields are silent (5.2, configuration_utils.py).
_TOP_K = 50


@dataclass(frozen=True)
class LanguageModelSource:
    """A language model, read but not loaded. `revision` is None for a folder.

    `window` is the number of tokens that a layer with a sliding one sees, None where none has one;
    `remarks` are what its owner is to know.
    """

    name: str
    revision: str | None
    folder: Path
    model_type: str
    tokenizer: TokenizerFile
    generation: Generation
    window: int | None
    remarks: tuple[str, ...] = ()


def open_language_model(
    model: str,
    *,
    revision: str | None = None,
    name: str | None = None,
    max_length: int | None = None,
    allow_pickle: bool = False,
    engine: str = "openvino",
) -> LanguageModelSource:
    """Find `model` (a folder, else a Hub id) and read what serving by `engine` needs to know of it.

    `max_length` are the positions of prompt and new tokens together, the model's own or 8192
    unless given, and of a 'longrope' model those before its factors change. Raises
    ConversionRefused when the model is not found, generates no text, has weights that are not whole
    or pickles that are not allowed, or asks for what the engine does not do.
    """
    folder, found_name, found_revision = locate_model(model, revision, allow_pickle)
    refuse_pickles(folder, allowed=allow_pickle)
    refuse_others(folder)
    refuse_cut(folder)
    config = read_model_config(folder)
    _check_architecture(config)
    defaults = read_defaults(folder)
    tokenizer = read_tokenizer(folder, pads=False)
    return LanguageModelSource(
        name=name or found_name,
        revision=found_revision,
        folder=folder,
        model_type=str(config.get("model_type", "")),
        tokenizer=tokenizer,
        generation=replace(_generation(folder, config, defaults, max_length), engine=engine),
        window=_window(config),
        remarks=_remarks(config, tokenizer, max_length),
    )


def _check_architecture(config: Mapping[str, Any]) -> None:
    names = [str(name) for name in config.get("architectures") or ()]
    if config.get("is_encoder_decoder") or (
        names and not any(name.endswith(ARCHITECTURES) for name in names)
    ):
        raise ConversionRefused(
            f"the model is {', '.join(names) or 'an encoder with a decoder'}, and text-generation "
            f"serves causal language models, …{' or …'.join(ARCHITECTURES)}; name another "
            "--task, or such a model"
        )


def _generation(
    folder: Path, config: Mapping[str, Any], defaults: Mapping[str, Any], max_length: int | None
) -> Generation:
    vocabulary = size_of(config, "vocab_size")
    positions = _positions(config, max_length)
    asked = defaults.get("max_new_tokens")
    new = asked if isinstance(asked, int) and asked > 0 else _NEW_UNASKED
    loaded = load_tokenizer(folder)
    generation = Generation(
        engine="openvino",
        vocabulary=vocabulary,
        max_positions=positions,
        max_new_tokens=positions - 1,
        default_new_tokens=min(new, max(1, positions // 2)),
        eos_ids=_eos_ids(defaults, vocabulary),
        sampling=_sampling(defaults, positions),
        special_tokens={
            name: str(text)
            for name, text in loaded.special_tokens_map.items()
            if isinstance(text, str)
        },
        chat_template=_chat_template(loaded.chat_template),
        top_k_is_unsaid=_top_k(defaults) is None,
    )
    _check_chat_template(generation)
    return generation


def _check_chat_template(generation: Generation) -> None:
    """Raises ConversionRefused where there is one by which no conversation can be sent."""
    from preprocess.generation.chat import fault_of

    if fault := fault_of(generation):
        raise ConversionRefused(
            f"the model's chat template {fault}; mend it (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), or take it out where plain prompts are enough"
        )


def _positions(config: Mapping[str, Any], max_length: int | None) -> int:
    most, own = _most_positions(config)
    if max_length is not None and not 2 <= max_length <= most:
        why = f", whose longer texts have other rotary factors ({_LONGROPE})" if most < own else ""
        raise ConversionRefused(
            f"--max-length must be from 2 to {most} for this model{why}, got {max_length}"
        )
    return max_length or min(most, LONGEST_UNASKED)


def _remarks(
    config: Mapping[str, Any], tokenizer: TokenizerFile, max_length: int | None
) -> tuple[str, ...]:
    """What is said of a tokenizer that may be another model's, and of an endpoint that has fewer
    positions than could be asked for."""
    fewer = tokenizer.remark_of_fewer(size_of(config, "vocab_size"))
    found = (fewer,) if fewer else ()
    most, _ = _most_positions(config)
    if max_length is not None or most <= LONGEST_UNASKED:
        return found
    return (
        *found,
        f"the endpoint takes prompt and new tokens together of up to {LONGEST_UNASKED} tokens, "
        f"the model up to {most}; more are refused with 413; --max-length {most} takes them all, "
        "with gigabytes for the cache of one",
    )


def _most_positions(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many can be served, and how many the model has: tables end there, and so does rotary
    training."""
    own = positions_of(config)
    if own is None:
        raise ConversionRefused(
            "config.json does not say how many positions the model has; add max_position_embeddings"
        )
    return min(own, _positions_of_short_factors(config) or own), own


def _positions_of_short_factors(config: Mapping[str, Any]) -> int | None:
    """A graph has one set of rotary factors, and a 'longrope' model another one for each text that
    grows beyond its original positions: keys that were cached before would be of the first.

    'dynamic' factors change beyond max_position_embeddings alone, where no text gets to.
    """
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Some families have them for each type of layer.
    for rope in (written, *(one for one in written.values() if isinstance(one, Mapping))):
        if _LONGROPE in (rope.get("rope_type"), rope.get("type")):
            found = rope.get("original_max_position_embeddings")
            found = found or config.get("original_max_position_embeddings")
            return found if isinstance(found, int) else None
    return None


def _eos_ids(defaults: Mapping[str, Any], vocabulary: int) -> tuple[int, ...]:
    """None where nothing names them, as in transformers' `generate`, whose classes of a config.json
    have ids of their own."""
    found = defaults.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return tuple(one for one in ids if isinstance(one, int) and 0 <= one < vocabulary)


def _sampling(defaults: Mapping[str, Any], positions: int) -> Sampling:
    """Of its numbers those that cannot be are taken as unsaid: greedy models' configs have a
    temperature of 0."""

    def number(name: str, unsaid: float, most: float) -> float:
        value = defaults.get(name)
        usable = isinstance(value, int | float) and LEAST_SAMPLING < value <= most
        return float(value) if usable and value is not None else unsaid

    top_k, least = _top_k(defaults), defaults.get("min_new_tokens")
    return Sampling(
        do_sample=bool(defaults.get("do_sample")),
        temperature=number("temperature", 1.0, 100.0),
        top_p=number("top_p", 1.0, 1.0),
        top_k=_TOP_K if top_k is None else top_k,
        repetition_penalty=number("repetition_penalty", 1.0, 100.0),
        min_new_tokens=min(max(0, least), positions - 1) if isinstance(least, int) else 0,
        min_p=number("min_p", 0.0, 1.0),
    )


def _top_k(defaults: Mapping[str, Any]) -> int | None:
    found = defaults.get("top_k")
    return found if isinstance(found, int) and found >= 0 else None


def _chat_template(found: Any) -> str | None:
    """A tokenizer may have several by name; the plain one is 'default'."""
    if isinstance(found, Mapping):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _window(config: Mapping[str, Any]) -> int | None:
    """Mistral's stands there where it has one; Qwen's counts only with use_sliding_window, and in
    layers that are named for it, as GPT-Neo's."""
    layers = config.get("layer_types") or config.get("attention_layers")
    if config.get("use_sliding_window") is False or (layers and not _WINDOWED & {*layers}):
        return None
    for name in ("sliding_window", "window_size"):
        if isinstance(config.get(name), int):
            return int(config[name])
    return None
