"""What a sentence-transformers model says of itself: modules, prompts, similarity.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.meanings import SIMILARITIES
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.foreign_code import refuse_own_activation
from transformer_serving.desk.source.json_files import read_json


@dataclass(frozen=True)
class SentenceSettings:
    """`modules` are the class names after the encoder, in order; `prompts` texts by name.

    `dimensions` is how many of a vector's the model's own settings keep, None for all; `pooling` a
    mode of sentence-transformers that was asked for where modules.json says none.
    """

    modules: tuple[str, ...]
    prompts: dict[str, str]
    default_prompt: str | None
    similarity: str
    dimensions: int | None = None
    pooling: str | None = None


class ModuleRow(NamedTuple):
    """A module's class name, and the config.json of its own folder, empty where it has none."""

    name: str
    config: Mapping[str, Any]


# Others want more than vectors and the mask, or look from token to token beside the mask.
SERVED_MODULES = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")
_OWN_PACKAGE = "sentence_transformers."
# The names that sentence-transformers tries for its Transformer module, in its order.
_TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Where those may say the longest text; the first counts. What the tokenizer is told at each call is
# before what it is made with.
_LENGTHS = (
    *(("processing_kwargs", name, "max_length") for name in ("common", "text")),
    *((name, "model_max_length") for name in ("processor_kwargs", "tokenizer_args")),
    ("max_seq_length",),
)
# Pooled without their prompts by sentence-transformers, whatever their files say.
_WITHOUT_PROMPTS = tuple(f"hkunlp/instructor-{size}" for size in ("base", "large", "xl"))
# Empty where the model's files do not say them.
_OWN_PROMPTS = ("query", "document")
_NO_LIST = (
    "modules.json is no list of modules with a type each; save the model with "
    "sentence-transformers again"
)
_FIRST = (
    "modules.json starts with '{}'; only models that start with a Transformer module can be "
    "served; convert another one"
)
# sentence-transformers' own choice for a bare encoder.
BARE_ENCODER = SentenceSettings(("Pooling",), dict.fromkeys(_OWN_PROMPTS, ""), None, "cosine")


def refuse_own_modules(folder: Path) -> None:
    """Raises ConversionRefused for a model whose modules are not sentence-transformers' own: to
    load one is to run the code that its folder or another package has under that name."""
    path = folder / "modules.json"
    if not path.is_file():
        return
    try:
        types = [str(row["type"]) for row in json.loads(path.read_bytes())]
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionRefused(_NO_LIST) from error
    foreign = next((name for name in types if not name.startswith(_OWN_PACKAGE)), None)
    if foreign is not None:
        raise ConversionRefused(
            f"modules.json has '{foreign}', which is none of sentence-transformers' own modules; "
            "models with code of their own are not loaded"
        )


def has_modules(folder: Path) -> bool:
    """Whether the model says itself what becomes of its tokens' vectors."""
    return (folder / "modules.json").is_file()


def read_sentence_settings(
    folder: Path, name: str = "", *, computed: bool = False
) -> SentenceSettings:
    """The settings of the model in `folder`, on the Hub called `name`. Raises ConversionRefused for
    what is not served; with `computed` a graph has the modules in it already, whatever they are."""
    rows = module_rows(folder)
    if rows is None:
        return BARE_ENCODER
    names = [row.name for row in rows]
    settings = read_json(folder / "config_sentence_transformers.json") or {}
    if not computed:
        _refuse_unserved(names)
        refuse_own_activation(row.config for row in rows if row.name == "Dense")
        _check_pooling(folder, names)
        _check_default_prompt(settings)
    prompts = read_prompts(folder)
    default = settings.get("default_prompt_name")
    _refuse_left_out_prompts(rows, name)
    return SentenceSettings(
        modules=tuple(names[1:]),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
        similarity=_similarity(settings),
        dimensions=_dimensions(settings),
    )


def read_prompts(folder: Path) -> dict[str, str]:
    """The model's own by name, and the two that sentence-transformers gives every model."""
    settings = (
        read_json(folder / "config_sentence_transformers.json") if has_modules(folder) else {}
    )
    # One without a text is no prompt, and can be named where the default is another.
    written = (settings or {}).get("prompts") or {}
    return {
        **BARE_ENCODER.prompts,
        **{str(name): text or "" for name, text in written.items()},
    }


def module_rows(folder: Path) -> tuple[ModuleRow, ...] | None:
    """modules.json in its order, None where there is none. Raises ConversionRefused for what is no
    such list."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        rows = sorted(json.loads(path.read_bytes()), key=lambda row: int(row["idx"]))
        return tuple(
            ModuleRow(
                str(row["type"]).rsplit(".", 1)[-1],
                (read_json(folder / str(row["path"]) / "config.json") or {})
                if row.get("path")
                else {},
            )
            for row in rows
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConversionRefused(_NO_LIST) from error


def _refuse_unserved(names: Sequence[str]) -> None:
    if not names or names[0] != "Transformer":
        raise ConversionRefused(_FIRST.format(names[0] if names else "nothing"))
    unserved = [name for name in names[1:] if name not in SERVED_MODULES]
    if unserved:
        raise ConversionRefused(
            f"modules.json has '{unserved[0]}', which is not served; behind the Transformer may "
            f"stand {', '.join(SERVED_MODULES)}; convert another model"
        )


def _check_pooling(folder: Path, names: Sequence[str]) -> None:
    """Raises ConversionRefused where nothing makes one vector of those of a text's tokens."""
    given = read_transformer_settings(folder).get("module_output_name")
    if "Pooling" not in names and given != "sentence_embedding":
        raise ConversionRefused(
            "modules.json has no Pooling behind its Transformer, so there is no vector of a text; "
            "save the model with sentence-transformers and its Pooling, or, where it was trained "
            "to be pooled by means, convert a copy without modules.json"
        )


def _check_default_prompt(settings: Mapping[str, Any]) -> None:
    """Raises ConversionRefused for a name that sentence-transformers has no prompt of."""
    default = settings.get("default_prompt_name")
    known = (*_OWN_PROMPTS, *(settings.get("prompts") or {}))
    if default is not None and default not in known:
        raise ConversionRefused(
            f"default_prompt_name '{one_line(default, 60)}' is none of the prompts in "
            f"config_sentence_transformers.json ({', '.join(dict.fromkeys(known))}); correct it "
            "in a copy of the folder, or set it to null"
        )


def read_transformer_settings(folder: Path) -> dict[str, Any]:
    """What sentence-transformers' Transformer module says of itself, in its own folder; nothing
    without modules.json, where sentence-transformers reads no such file."""
    if not (folder / "modules.json").is_file():
        return {}
    _, place = _first_module(folder)
    found = (read_json(place / name) for name in _TRANSFORMER_FILES)
    return next((settings for settings in found if settings), {})


def transformer_folder(folder: Path) -> Path:
    """Where config.json, tokenizer and weights are: older releases of sentence-transformers gave
    the Transformer module a folder as well. Raises ConversionRefused where another one has it."""
    name, place = _first_module(folder)
    if place == folder or not (place / "config.json").is_file():
        return folder
    if name != "Transformer":
        raise ConversionRefused(_FIRST.format(name))
    return place


def refuse_module_folder(folder: Path) -> None:
    """Raises ConversionRefused for the folder of a model's Transformer alone: how its texts become
    vectors is said in the model's own, around it."""
    place = folder.resolve()
    if _first_module(place.parent) == ("Transformer", place):
        raise ConversionRefused(
            f"'{folder.name}' is the Transformer's folder of the model in '{place.parent}', whose "
            "modules.json says what becomes of its vectors; name that folder with --tokenizer"
        )


def _first_module(folder: Path) -> tuple[str, Path]:
    """The first module's class name and folder; the model's own where modules.json names none."""
    try:
        rows = json.loads((folder / "modules.json").read_bytes())
        first = min(rows, key=lambda row: int(row["idx"]))
        place = folder / str(first.get("path") or "")
        return str(first.get("type")).rsplit(".", 1)[-1], place
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", folder


def refuse_chat(folder: Path, has_template: bool) -> None:
    """Raises ConversionRefused where sentence-transformers would make a chat's message of each
    text: of a folder without modules by the tokenizer's template, otherwise as they say."""
    if (folder / "modules.json").is_file():
        as_chat = "message" in (read_transformer_settings(folder).get("modality_config") or {})
    else:
        as_chat = has_template
    if as_chat:
        raise ConversionRefused(
            "sentence-transformers writes this model's texts by its chat template, which is not "
            "served; where plain texts are meant, take the template (chat_template.jinja, or "
            "chat_template in tokenizer_config.json) out of a copy of the folder, and 'message' "
            "out of modality_config where its sentence_bert_config.json has it"
        )


def lowercases(folder: Path) -> bool:
    """Whether that module lowercases a text, which no tokenizer.json says."""
    return bool(read_transformer_settings(folder).get("do_lower_case"))


def longest_of(settings: Mapping[str, Any]) -> int | None:
    """Where that module cuts a text, in tokens; None where the tokenizer alone says it."""
    for path in _LENGTHS:
        found: Any = settings
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, int):
            return found
    return None


def _similarity(settings: dict[str, Any]) -> str:
    written = str(settings.get("similarity_fn_name") or "cosine")
    if written not in SIMILARITIES:
        raise ConversionRefused(
            f"similarity_fn_name '{written}' is not served; set it to one of "
            f"{', '.join(SIMILARITIES)} in config_sentence_transformers.json"
        )
    return written


def _dimensions(settings: dict[str, Any]) -> int | None:
    written = settings.get("truncate_dim")
    if written is None or (isinstance(written, int) and written > 0):
        return written
    raise ConversionRefused(
        f"truncate_dim {written!r} is no number of dimensions; correct it in "
        "config_sentence_transformers.json"
    )


def _refuse_left_out_prompts(rows: Sequence[ModuleRow], name: str) -> None:
    """A pooling that leaves the prompt's tokens out needs to know where they end; a request may
    have a prompt of its own where the model has none."""
    left_out = any(row.config.get("include_prompt") is False for row in rows)
    if left_out or name in _WITHOUT_PROMPTS:
        raise ConversionRefused(
            "the model's pooling leaves prompts' tokens out (include_prompt: false), which is not "
            "served; use a model that pools over the prompt too, or, where it is to be asked "
            "without prompts, a copy of this one in a folder with include_prompt: true in its "
            "Pooling's config.json"
        )
