"""Weights that are pickles: reading one runs whatever program its writer put into it.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.weight_settings import refuse_other_weights

# *.bin is torch's older name for them; of these, the others are no weights.
PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*", "openvino_*.bin")
# What the packages look for; any other *.safetensors they leave, and read the pickle beside it.
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SAFE = (WHOLE, INDEX)
_SAFETENSORS = ".safetensors"
# Modules of sentence-transformers with weights of their own.
_WEIGHTY = ("Transformer", "Dense", "LayerNorm", "CNN")
# Weights of other frameworks, which transformers 5 does not read.
_OTHERS = ("tf_model.h5", "flax_model.msgpack")
NOT_READ = (
    "TensorFlow's and Flax's are not read; load them with transformers 4 (from_tf=True or "
    "from_flax=True) and convert what its save_pretrained writes"
)


def refuse_pickles(folder: Path, *, allowed: bool) -> None:
    """Raises ConversionRefused for a model whose weights are pickles and nothing else.

    Beside safetensors they are not read, unless a file of settings says otherwise, which is refused
    as well. sentence-transformers keeps weights in folders of its modules, too.
    """
    encoders = _encoders(folder)
    refuse_other_weights(folder, encoders)
    if allowed:
        return
    for place in dict.fromkeys((folder, *modules_of(folder).values())):
        if _is_safe(place, sharded=place in encoders):
            continue
        found = next(_pickles(place), None)
        said = f"'{found.relative_to(folder)}' is a pickle" if found else None
        named = [name for name in listed(place / INDEX) if not name.endswith(_SAFETENSORS)]
        if place in encoders and named:
            said = f"{INDEX} names '{named[0]}', which is no safetensors, and may be a pickle"
        if said is not None:
            raise ConversionRefused(
                f"{said}: reading it runs what its writer put into it; take a model with "
                ".safetensors, or, where you trust the writer, say --allow-pickle"
            )


def refuse_others(folder: Path) -> None:
    """Raises ConversionRefused for a model whose weights are TensorFlow's or Flax's alone."""
    torch = (*_SAFE, "pytorch_model*.bin")
    found = next((name for name in _OTHERS if (folder / name).is_file()), None)
    if found is not None and not any(any(folder.glob(name)) for name in torch):
        raise ConversionRefused(
            f"the weights of '{folder.name}' are '{found}' alone, and {NOT_READ}"
        )


def without_safetensors(folder: Path) -> list[Path]:
    """The model's own folder and its modules', as far as they have weights, and none there that are
    safetensors."""
    modules = modules_of(folder)
    weighty = [place for name, place in modules.items() if name.endswith(_WEIGHTY)]
    # In the older layout the encoder's weights are its module's, and none are the folder's own.
    own = () if any(name.endswith("Transformer") for name in modules) else (folder,)
    encoders = _encoders(folder)
    return [
        place
        for place in dict.fromkeys((*own, *weighty))
        if not _is_safe(place, sharded=place in encoders)
    ]


def _encoders(folder: Path) -> tuple[Path, ...]:
    """Those whose weights transformers reads, and so an index of more files than one."""
    modules = modules_of(folder)
    return folder, *(place for name, place in modules.items() if name.endswith("Transformer"))


def _is_safe(place: Path, *, sharded: bool) -> bool:
    if (place / WHOLE).is_file():
        return True
    names = listed(place / INDEX) if sharded else ()
    return bool(names) and all(name.endswith(_SAFETENSORS) for name in names)


def listed(index: Path) -> tuple[str, ...]:
    """The files that an index of weights names, each as often as it does; they may be of any kind,
    and anywhere."""
    shards = (read_json(index) or {}).get("weight_map")
    return tuple(map(str, shards.values())) if isinstance(shards, dict) else ()


def _pickles(place: Path) -> Iterator[Path]:
    for pattern in PATTERNS:
        for path in sorted(place.glob(pattern)):
            if not any(path.match(name) for name in _NO_WEIGHTS):
                yield path


def modules_of(folder: Path) -> dict[str, Path]:
    """The folders of modules.json, as far as they lie in the model's, by number and type."""
    try:
        rows = json.loads((folder / "modules.json").read_bytes())
        named = {f"{at} {row.get('type')}": str(row["path"]) for at, row in enumerate(rows)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: folder / path for name, path in named.items() if path and (folder / path).is_dir()
    }
