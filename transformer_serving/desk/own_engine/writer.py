"""An engine that somebody else made, and a tokenizer, to a bundle; there is no reference to ask."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.endpoint import Endpoint, Tokens
from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.errors import ContractError, ServingError
from transformer_serving.contract.gate.onnx_weights import outer_files
from transformer_serving.contract.gate.plan_header import read_plan_header
from transformer_serving.contract.heads import TASK_HEADS, TASKS
from transformer_serving.contract.manifest import Golden
from transformer_serving.contract.meanings import Classification, Embedding
from transformer_serving.desk.builders.call_sizes import CallSizes
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import ENGINES
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.signing import SigningKey
from transformer_serving.desk.bundle.writer import BundleContent, check_target, write_bundle
from transformer_serving.desk.export.endpoint_json import (
    cuts_unasked,
    ending_at,
    limits_of,
    remark_of_uncut,
)
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.folder_replacement import place_of
from transformer_serving.desk.own_engine.engine import (
    check_file,
    engine_of,
    open_own_engine,
)
from transformer_serving.desk.own_engine.padding import side_of_engine
from transformer_serving.desk.own_engine.proof import own_proof
from transformer_serving.desk.own_engine.tensors import (
    EngineTensors,
    head_and_output,
    input_tensors,
    read_onnx_tensors,
)
from transformer_serving.desk.own_engine.vectors import Asked, embedding_of, token_vectors
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.scratch import scratch_beside
from transformer_serving.desk.source.config import LONGEST_UNASKED, read_model_config
from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.labels import read_labels
from transformer_serving.desk.source.longest_text import longest_text
from transformer_serving.desk.source.sentence import (
    lowercases,
    refuse_module_folder,
    transformer_folder,
)
from transformer_serving.desk.source.tokenizer import TokenizerFile, read_tokenizer

# An answer of another machine, driver or instruction set differs by this much at most.
_TOLERANCE = 1e-2
UNVERIFIED = "not compared with any reference: the engine was brought, not converted"


@dataclass(frozen=True)
class OwnEngine:
    """What the user gives. `tensors` is needed for a plan; an ONNX file states its own.

    `body` is the golden request; `answer` what it must answer, None to ask the engine here.
    `pooling` and `normalize` are for outputs of one vector a token; None takes what the tokenizer's
    folder says, else the mean of length 1.
    """

    file: Path
    tokenizer: Path
    task: str
    body: Mapping[str, Any]
    sizes: CallSizes
    answer: Any = None
    labels: tuple[str, ...] = ()
    precision: str = "fp32"
    tensors: EngineTensors | None = None
    output: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    pooling: str | None = None
    normalize: bool | None = None
    name: str | None = None

    @property
    def encoder(self) -> Path:
        """The folder of config.json and tokenizer: `tokenizer`, or one inside it."""
        return transformer_folder(self.tokenizer)


def write_own_bundle(
    own: OwnEngine, target: Path, say: Callable[[str], None], key: SigningKey | None = None
) -> Bundle:
    """Make the bundle folder `target`, signed where there is a `key`; the engine's file is copied.
    `say` gets what its owner is to know.

    Raises ConversionRefused when the file, its tensors or the golden request do not fit the task.
    """
    if own.task not in TASKS:
        raise ConversionRefused(
            f"task '{own.task}' cannot be served; use one of {', '.join(TASKS)}"
        )
    target = place_of(target)
    check_target(target)
    engine = engine_of(own.file)
    check_file(engine, own.file)
    tensors = own.tensors or _stated(engine, own.file)
    by_sentences = "vector" in TASK_HEADS[own.task]
    if by_sentences:
        refuse_module_folder(own.tokenizer)
    tokenizer = read_tokenizer(own.encoder, lowercases=by_sentences and lowercases(own.tokenizer))
    endpoint = replace(endpoint_of(own, tensors, tokenizer), golden=dict(own.body))
    if remark := remark_of_uncut(own.task, tokenizer.max_length, endpoint.tokens):
        say(remark)
    with scratch_beside(target, ".bundle.") as scratch:
        names = tuple(tensor.name for tensor in endpoint.outputs)
        files = replace(_copied(own, engine, scratch), outputs=names)
        endpoint, golden = _tried(own, endpoint, tokenizer, files)
        proven = own_proof(endpoint, tokenizer.content, files, own.body)
        if unproven := proven.facts.get("unproven"):
            say(f"unproven where it is served: {unproven}")
        content = BundleContent(
            endpoint=endpoint,
            tokenizer=tokenizer,
            engine=files,
            golden=golden,
            parity={"unverified": UNVERIFIED, **proven.facts},
            parity_set=proven.parity_set,
            source={"model": own.name or own.file.name, "revision": None, "model_type": None},
        )
        return write_bundle(content, target, key)


def _stated(engine: str, file: Path) -> EngineTensors:
    if engine == "tensorrt":
        raise ConversionRefused(
            "a plan does not say its tensors without its GPU; give --input-tensor NAME:TYPE for "
            "each input and --output-tensor NAME:TYPE:DIMS"
        )
    return read_onnx_tensors(file)


def endpoint_of(own: OwnEngine, tensors: EngineTensors, tokenizer: TokenizerFile) -> Endpoint:
    """endpoint.json of the engine, its version and hash still empty."""
    head, output = head_and_output(own.task, tensors.outputs, own.output)
    labelled, vectors = head in ("sequence", "tokens"), head in ("vector", "token_vectors")
    if vectors and "sequence" in TASK_HEADS[own.task] and _is_classifier(own, output.dims[-1]):
        # Its columns are labels, of which a pair's score has one: said by what reads them.
        _classification(own, output.dims[-1])
    return Endpoint(
        bundle_version=0,
        bundle_hash="",
        task=own.task,
        head=head,
        inputs=input_tensors(tensors.inputs, own.roles),
        outputs=(output,),
        tokens=_tokens(own, tokenizer, head),
        limits=replace(
            limits_of(own.task),
            max_batch_size=own.sizes.batch[2],
            max_call_tokens=ENGINES[engine_of(own.file)].call_tokens,
        ),
        classification=_classification(own, output.dims[-1]) if labelled else None,
        embedding=_embedding(own, head, output.dims[-1]) if vectors else None,
        masks=None,
    )


def _tokens(own: OwnEngine, tokenizer: TokenizerFile, head: str) -> Tokens:
    longest = own.sizes.max_length or _longest(own, tokenizer)
    if longest is None:
        raise ConversionRefused(
            "the tokenizer does not say how long a text may be; give --max-length TOKENS"
        )
    tokenizer.check_longest(longest, None, head)
    return Tokens(
        max_length=longest,
        buckets=ending_at(longest, own.sizes.buckets),
        pad_id=tokenizer.pad_id,
        pad_token=tokenizer.pad_token,
        pad_type_id=tokenizer.pad_type_id,
        # Unless the engine, where it runs here, says otherwise.
        padding_side="right",
        truncate=cuts_unasked(own.task, tokenizer.max_length, longest),
        truncation_side=tokenizer.truncation_side,
        unk_id=tokenizer.unk_id,
        cls_id=tokenizer.cls_id,
        question_first=tokenizer.padding_side == "right",
        split_special_tokens=tokenizer.split_special_tokens,
    )


def _longest(own: OwnEngine, tokenizer: TokenizerFile) -> int | None:
    """As of a model that is converted; a tokenizer may be brought without the model's config.json,
    or with one of a family that nobody here knows."""
    config: Mapping[str, Any] = {}
    with suppress(ConversionRefused):
        config = read_model_config(own.encoder)
    found = longest_text(own.tokenizer, config, tokenizer, "vector" in TASK_HEADS[own.task])
    return None if found is None else min(found, LONGEST_UNASKED)


def _is_classifier(own: OwnEngine, columns: int) -> bool:
    """By what was said of it: its columns look like a vector's."""
    config = read_json(own.encoder / "config.json") or {}
    names = map(str, config.get("architectures") or ())
    classifies = any(name.endswith("ForSequenceClassification") for name in names)
    labels = config.get("id2label")
    named = len(labels) if isinstance(labels, Mapping) else 0
    return bool(own.labels) or (classifies and named == columns)


def _classification(own: OwnEngine, columns: int) -> Classification:
    config = read_json(own.encoder / "config.json") or {}
    if own.labels:
        # Whatever its label2id says is of other names.
        config = {**config, "id2label": dict(enumerate(own.labels)), "label2id": None}
    if not config.get("id2label"):
        raise ConversionRefused(
            f"the engine has {columns} columns without names; give --labels, separated by commas"
        )
    found = read_labels(config, own.tokenizer, own.task)
    if len(found.labels) != columns:
        raise ConversionRefused(
            f"the engine has {columns} columns, and {len(found.labels)} labels were given"
        )
    return found


def _embedding(own: OwnEngine, head: str, width: int) -> Embedding:
    if own.task == "feature-extraction":
        return token_vectors(own.tokenizer, width)
    return embedding_of(
        own.tokenizer,
        per_token=head == "token_vectors",
        width=width,
        asked=Asked(own.pooling, own.normalize),
    )


def _copied(own: OwnEngine, engine: str, folder: Path) -> EngineFiles:
    plan = engine == "tensorrt"
    target = folder / ("model.plan" if plan else "model.onnx")
    shutil.copyfile(own.file, target)
    if plan:
        header = read_plan_header(target)
        facts = {
            "version": header.tensorrt,
            "compute_capability": header.compute_capability,
            # One context a profile: Triton would use only the first of those it is not told.
            "profiles": 0,
        }
        return EngineFiles(engine, own.precision, (target,), facts)
    outer = []
    for name in outer_weights(own.file):
        shutil.copyfile(own.file.parent / name, folder / name)
        outer.append(folder / name)
    return EngineFiles(engine, own.precision, (target, *outer))


def outer_weights(file: Path) -> tuple[str, ...]:
    """Files beside an ONNX file that hold its weights. Raises ConversionRefused without one."""
    try:
        names = outer_files(file)
    except ContractError as error:
        raise ConversionRefused(f"--from: {error}") from error
    beside = {one.name for one in file.parent.iterdir() if one.is_file()}
    for name in names:
        if name not in beside:
            raise ConversionRefused(
                f"--from: the weights of '{file.name}' are in '{one_line(Path(name).name, 120)}', "
                "which is not beside it; put it there"
            )
    return tuple(sorted(names))


def _tried(
    own: OwnEngine, endpoint: Endpoint, tokenizer: TokenizerFile, files: EngineFiles
) -> tuple[Endpoint, Golden]:
    """The endpoint with the side on which its engine may be padded, and the golden answer."""
    body, content = dict(own.body), tokenizer.content
    if files.engine == "tensorrt":
        if own.answer is not None:
            with _golden_told(own.task):
                LocalEndpoint(endpoint, content, lambda _: []).work(body)
            return endpoint, Golden(body, own.answer, _TOLERANCE)
        _require_machine()
    call = open_own_engine(files)
    with _golden_told(own.task):
        side = side_of_engine(endpoint, content, call, body, own.precision)
        endpoint = replace(endpoint, tokens=replace(endpoint.tokens, padding_side=side))
        answer = own.answer
        if answer is None:
            answer = LocalEndpoint(endpoint, content, call).answer(body)
    # Through JSON, as a caller reads it.
    return endpoint, Golden(body, json.loads(json.dumps(answer)), _TOLERANCE)


@contextmanager
def _golden_told(task: str) -> Iterator[None]:
    """In the block the golden request is read: what an endpoint says of it to its owner."""
    try:
        yield
    except ServingError as error:
        raise ConversionRefused(
            f"the golden request is none that {task} answers: {error.message}; --text takes "
            "a whole body as JSON too"
        ) from error


def _require_machine() -> None:
    from transformer_serving.desk.builders.tensorrt import require_machine

    try:
        require_machine()
    except ConversionRefused as error:
        raise ConversionRefused(
            f"the golden answer of a plan comes from running it, and {error}; or give it "
            "yourself with --answer"
        ) from error
