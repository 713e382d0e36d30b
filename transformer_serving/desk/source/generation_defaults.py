"""What a language model generates by where nobody says otherwise, as transformers reads it.

Tested by tests/source/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json

# Of its fields what is read by us,
_SERVED = (
    *("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("eos_token_id", "max_new_tokens", "min_new_tokens"),
)
# what changes no token of a text: a length that each request has of its own, ids that are for
# batches and encoders, beams' own numbers, the cache, guesses that are checked, what is given back,
_HARMLESS = (
    *("max_length", "pad_token_id", "bos_token_id", "decoder_start_token_id"),
    *("early_stopping", "length_penalty", "diversity_penalty", "renormalize_logits"),
    *("use_cache", "cache_implementation", "cache_config", "prefill_chunk_size", "low_memory"),
    *("compile_config", "disable_compile", "is_assistant", "prompt_lookup_num_tokens"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
    *("max_matching_ngram_size", "output_attentions", "output_hidden_states", "output_scores"),
    *("output_logits", "return_dict_in_generate", "transformers_version"),
)
# and the values at which a field does nothing. Any other field the engine does not do.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "min_length": (0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "penalty_alpha": (0.0,),
    "guidance_scale": (1.0,),
    "remove_invalid_values": (False,),
    "token_healing": (False,),
    "stop_strings": ([], ""),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ([], {}),
}
# Those that the engine does not do, whatever is in them. All that are named here transformers takes
# from a config.json as well.
_LACKING = (
    *("constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids"),
    *("forced_bos_token_id", "forced_eos_token_id", "max_time", "top_h", "watermarking_config"),
)


def read_defaults(folder: Path) -> dict[str, Any]:
    """The fields of generation_config.json, or where there is none those that config.json has by
    the same names, as written: transformers' own classes of a config.json leave them out.

    Raises ConversionRefused for one that the engine does not do.
    """
    name = "generation_config.json"
    found = read_json(folder / name)
    if found is None:
        name = "config.json"
        written = read_json(folder / name) or {}
        known = (*_SERVED, *_HARMLESS, *_NOTHING, *_LACKING)
        found = {field: written[field] for field in known if field in written}
    _check_served(found, name)
    return found


def _check_served(defaults: Mapping[str, Any], name: str) -> None:
    for field, value in defaults.items():
        if value is None or field in (*_SERVED, *_HARMLESS) or field.startswith("_"):
            continue
        if value not in _NOTHING.get(field, ()):
            raise ConversionRefused(
                f"{name} has '{field}', which the engine does not do, so that its text would be "
                "another one than transformers'; take the field out"
            )
