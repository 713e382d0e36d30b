"""Where a model comes from: a Hub id or a folder becomes its task, tokenizer and limits.

Nothing here imports torch: a model that cannot be served is refused before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.heads import TASK_HEADS
from transformer_serving.contract.meanings import Classification
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.config import read_model_config, refuse_adapter, size_of
from transformer_serving.desk.source.foreign_code import refuse_own_model
from transformer_serving.desk.source.labels import read_labels
from transformer_serving.desk.source.longest_text import longest_text
from transformer_serving.desk.source.padding import check_last_token, check_row
from transformer_serving.desk.source.pickled_weights import (
    NOT_READ,
    refuse_others,
    refuse_pickles,
    without_safetensors,
)
from transformer_serving.desk.source.sentence import (
    BARE_ENCODER,
    SentenceSettings,
    has_modules,
    lowercases,
    read_prompts,
    read_sentence_settings,
    refuse_chat,
    refuse_own_modules,
    transformer_folder,
)
from transformer_serving.desk.source.task import head_of, task_of
from transformer_serving.desk.source.tokenizer import TokenizerFile, read_tokenizer
from transformer_serving.desk.source.whole_weights import refuse_cut

_PICKLED_WEIGHTS = "pytorch_model*.bin"
# Other frameworks' copies of the same weights double a download and are never read, nor are those
# in the forms of the models' own makers.
_IGNORED = (
    *("*.bin", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.onnx", "onnx/*", "openvino/*"),
    *("*.pt", "*.pth", "*.ckpt", "*.gguf", "original/*", "consolidated*"),
)
NO_MASK = (
    "fill-mask needs a tokenizer with a mask token, and this one has none; name another --task, or "
    "set mask_token in tokenizer_config.json where the tokenizer knows one"
)
# A model's width, and how many attention heads share it.
_HEAD_FIELDS = (
    ("hidden_size", "d_model", "dim", "n_embd"),
    ("num_attention_heads", "encoder_attention_heads", "num_heads", "n_heads", "n_head"),
)


@dataclass(frozen=True)
class ModelSource:
    """A model on disk, read but not loaded. `revision` is None for a folder.

    `classification` is there for heads with labels, `sentence` for those with vectors;
    `head_size` is the width of an attention head, None where the config does not say; likewise
    `max_length`, the longest text in tokens, where no file does.
    """

    name: str
    revision: str | None
    folder: Path
    task: str
    head: str
    model_type: str
    tokenizer: TokenizerFile
    max_length: int | None
    takes_token_types: bool
    vocabulary: int
    classification: Classification | None
    sentence: SentenceSettings | None
    head_size: int | None = None

    @property
    def encoder(self) -> Path:
        """The folder of config.json, tokenizer and weights: `folder`, or one inside it."""
        return transformer_folder(self.folder)


def open_source(
    model: str,
    *,
    task: str | None = None,
    revision: str | None = None,
    name: str | None = None,
    allow_pickle: bool = False,
    pooling: str | None = None,
) -> ModelSource:
    """Find `model` (a folder, else a Hub id) and read what serving needs to know of it.

    `task` None or 'auto' is read from the model's files; `pooling` is for vectors of a model that
    says none itself. The Hub's own environment is honoured:
    HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, and the proxies'. Raises ConversionRefused when
    the model is not found, its task cannot be served, it has code of its own, its weights are not
    whole or pickles that are not allowed, or it pools by itself and `pooling` is given.
    """
    folder, found_name, found_revision = locate_model(model, revision, allow_pickle)
    refuse_pickles(folder, allowed=allow_pickle)
    refuse_cut(folder)
    refuse_own_modules(folder)
    encoder = transformer_folder(folder)
    refuse_others(encoder)
    config = read_model_config(encoder)
    chosen = task_of(config, folder, task)
    head = head_of(chosen, config, folder)
    refuse_own_model(encoder, head)
    by_sentences = "vector" in TASK_HEADS[chosen]
    tokenizer = read_tokenizer(encoder, lowercases=by_sentences and lowercases(folder))
    if by_sentences:
        refuse_chat(folder, tokenizer.chats)
    if head == "masks" and tokenizer.mask_id is None:
        raise ConversionRefused(NO_MASK)
    vocabulary = size_of(config, "vocab_size")
    check_row(tokenizer, vocabulary)
    if head == "sequence":
        check_last_token(config, tokenizer)
    labelled = head in ("sequence", "tokens")
    token_types = size_of(config, "type_vocab_size") > 1
    return ModelSource(
        name=name or found_name,
        revision=found_revision,
        folder=folder,
        task=chosen,
        head=head,
        model_type=str(config.get("model_type", "")),
        tokenizer=tokenizer,
        max_length=longest_text(folder, config, tokenizer, by_sentences),
        # Where the tokenizer does not fill them, the reference does not pass them either.
        takes_token_types=token_types and "token_type_ids" in tokenizer.names,
        vocabulary=vocabulary,
        classification=read_labels(config, folder, chosen) if labelled else None,
        sentence=_sentence(folder, head, found_name, pooling),
        head_size=_head_size(config),
    )


def _head_size(config: Mapping[str, Any]) -> int | None:
    """Families name the same sizes differently."""
    if isinstance(config.get("head_dim"), int):
        return int(config["head_dim"])
    width, heads = (
        next((config[name] for name in names if isinstance(config.get(name), int)), None)
        for names in _HEAD_FIELDS
    )
    return max(1, width // heads) if width and heads else None


def _sentence(folder: Path, head: str, name: str, pooling: str | None) -> SentenceSettings | None:
    _check_pooling(folder, head, pooling)
    if head == "vector":
        return replace(read_sentence_settings(folder, name), pooling=pooling)
    # None is put unasked, as by the reference, but a request may name one.
    return replace(BARE_ENCODER, prompts=read_prompts(folder)) if head == "token_vectors" else None


def no_vector(pooling: str) -> str:
    """What is said of it where nothing is pooled."""
    return (
        f"--pooling {pooling} makes one vector of a text's, and this endpoint answers none; "
        "leave it out, or name --task sentence-embedding"
    )


def _check_pooling(folder: Path, head: str, asked: str | None) -> None:
    if asked is None:
        return
    if head != "vector":
        raise ConversionRefused(no_vector(asked))
    if has_modules(folder):
        raise ConversionRefused(
            f"--pooling {asked} is for models that do not say how they pool, and modules.json of "
            f"'{folder.name}' says it; leave it out, or convert a copy without modules.json"
        )


def locate_model(
    model: str, revision: str | None, allow_pickle: bool
) -> tuple[Path, str, str | None]:
    """The folder of `model`, downloaded where it is a Hub id, its name and its commit there.

    Raises ConversionRefused as open_source does.
    """
    path = Path(model)
    if path.is_dir():
        if revision is not None:
            raise ConversionRefused(
                f"--revision names a Hub revision, but '{model}' is a folder; leave it out"
            )
        # Before its weights are looked at, which may be pickles.
        refuse_adapter(path.resolve())
        return path.resolve(), path.resolve().name, None
    if path.is_file():
        raise ConversionRefused(
            f"'{model}' is a file; name the model's folder that holds it, '{path.parent}'"
        )
    if path.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise ConversionRefused(f"folder '{model}' does not exist; name a model folder or a Hub id")
    folder = _download(model, revision, allow_pickle)
    # A snapshot's folder is named by the commit that the revision stood for.
    return folder, model, folder.name


def _download(model: str, revision: str | None, allow_pickle: bool) -> Path:
    # What huggingface_hub asks by; its errors of a connection are no OSError.
    import httpx
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    unreachable = (
        *(HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, httpx.InvalidURL),
        *(OSError, ValueError),
    )
    try:
        folder = Path(snapshot_download(model, revision=revision, ignore_patterns=list(_IGNORED)))
        refuse_adapter(folder)
        places = [place.relative_to(folder) for place in without_safetensors(folder)]
        if places and not allow_pickle:
            raise ConversionRefused(
                f"'{model}' has no '{places[0] / 'model.safetensors'}': where its weights are "
                "pickles ('pytorch_model.bin'), reading one runs what its writer put into it; "
                "where you trust the writer, say --allow-pickle; where they are other frameworks' "
                f"alone, {NOT_READ}"
            )
        if places:
            # Of the same commit: meanwhile a branch may have moved.
            patterns = [(place / _PICKLED_WEIGHTS).as_posix() for place in places]
            snapshot_download(model, revision=folder.name, allow_patterns=patterns)
            _check_arrived(model, folder, places)
    except unreachable as error:
        if constants.HF_HUB_OFFLINE:
            raise ConversionRefused(
                f"model '{model}' is no folder here and not in the Hub's cache, and HF_HUB_OFFLINE "
                "is set; unset it, or copy the model into a folder and name that"
            ) from error
        raise ConversionRefused(
            f"model '{model}' is neither a folder nor reachable on the Hub "
            f"({type(error).__name__}); check the name and --revision, set HF_TOKEN for a private "
            "model, or copy the model into a folder and name that"
        ) from error
    return folder


def _check_arrived(model: str, folder: Path, places: Sequence[Path]) -> None:
    """Raises ConversionRefused where the repository has no weights of torch at one of `places`."""
    for place in places:
        if not any((folder / place).glob(_PICKLED_WEIGHTS)):
            raise ConversionRefused(
                f"'{model}' has neither '{place / 'model.safetensors'}' nor "
                f"'{place / 'pytorch_model.bin'}', and {NOT_READ}"
            )
