"""One reader for three gates: may this bundle be served by that server?

Asked when a bundle is written (convert), when it is deployed, and in the controller before Triton
is touched. A bundle folder has `model/` inside; the controller holds only that folder, and asks
`require_servable`.

Tested by tests/contract/test_gate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.engine_parameters import OPENVINO, VLLM
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import parse_object
from transformer_serving.contract.gate.file_names import name_faults
from transformer_serving.contract.gate.onnx_limits import onnx_faults
from transformer_serving.contract.gate.onnx_weights import place_faults
from transformer_serving.contract.gate.openvino_ir import ir_faults
from transformer_serving.contract.gate.plan import plan_faults
from transformer_serving.contract.gate.release import older
from transformer_serving.contract.gate.server_facts import ServerFacts
from transformer_serving.contract.gate.torch_engine import torch_faults
from transformer_serving.contract.gate.vllm_engine import vllm_faults
from transformer_serving.contract.identity import (
    PARTS,
    PREPROCESS,
    Identity,
    check_preprocess,
    data_of,
    model_parts,
)
from transformer_serving.contract.manifest import (
    FILE_NAME,
    SCHEMA,
    TORCH,
    FileEntry,
    Manifest,
    read_manifest,
    sha256_of,
    verify_files,
)

# Raised when a check becomes stricter: what a controller loaded by others is checked again first.
RULES = 3
CONFIG = "config.pbtxt"
# What is wrong with the content of a bundle's config.pbtxt. Who asks brings it: to read one takes
# Triton's own definition, which is no part of Python.
ConfigCheck = Callable[[bytes, Manifest], Iterable[str]]


@dataclass(frozen=True)
class Refusal:
    """`code` is the check that refused; the message names what, wanted, got and the fix."""

    code: str
    message: str


@dataclass(frozen=True)
class Case:
    """What is judged. `endpoint` is None in the controller, which has no endpoint.json."""

    manifest: Manifest
    folder: Path
    prefix: str
    server: ServerFacts
    config_check: ConfigCheck
    endpoint: Endpoint | None

    def engine_files(self, suffix: str) -> Iterator[tuple[Path, FileEntry]]:
        for entry in self.manifest.files:
            path = self.folder / entry.path.removeprefix(self.prefix)
            if entry.path.startswith("model/") and entry.path.endswith(suffix) and path.is_file():
                yield path, entry


def open_manifest(text: str | bytes, server: ServerFacts, where: str = FILE_NAME) -> Manifest:
    """read_manifest, but a bundle of a newer kit is called that and not a broken file."""
    fields = parse_object(text, where)
    schema, kit = fields.values.get("schema"), fields.values.get("kit_version")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ContractError(_newer_kit(str(kit), server.kit_version))
    return read_manifest(text, where)


def refusals(
    manifest: Manifest,
    folder: Path,
    server: ServerFacts,
    config_check: ConfigCheck,
    *,
    prefix: str = "",
    endpoint: Endpoint | None = None,
    checks: tuple[str, ...] = (),
) -> tuple[Refusal, ...]:
    """Every reason why `server` must not load it, the cheapest to find first; none if it may.

    `checks` names the checks to make, all of them unless given.
    """
    case = Case(manifest, folder, prefix, server, config_check, endpoint)
    return tuple(
        Refusal(code, message)
        for code, check in CHECKS.items()
        if not checks or code in checks
        for message in _said(check, case)
    )


def require_servable(
    manifest: Manifest,
    folder: Path,
    server: ServerFacts,
    config_check: ConfigCheck,
) -> None:
    """Raises ContractError with the first refusal; `folder` is a bundle's model/ alone."""
    for refusal in refusals(manifest, folder, server, config_check, prefix="model/"):
        raise ContractError(refusal.message)


def _said(check: Callable[[Case], Iterator[str]], case: Case) -> list[str]:
    try:
        return list(check(case))
    except ContractError as error:
        return [str(error)]


def _kit(case: Case) -> Iterator[str]:
    own, made_by = case.server.kit_version, case.manifest.kit_version
    if own is not None and older(own, made_by):
        yield _newer_kit(made_by, own)


def _newer_kit(made_by: str, own: str | None) -> str:
    return (
        f"the bundle was made by transformer-serving {made_by}, newer than this "
        f"{own or 'kit'}; upgrade transformer-serving here, or convert again with this kit"
    )


def _names(case: Case) -> Iterator[str]:
    yield from name_faults(case.manifest.engine, _model_files(case)[1])


def _configuration(case: Case) -> Iterator[str]:
    path = _model_files(case)[0] / CONFIG
    if path.is_file():
        yield from case.config_check(path.read_bytes(), case.manifest)
    else:
        yield f"file '{CONFIG}' of the bundle is missing; convert again"


def _identity(case: Case, name: str, meaning: str) -> Iterator[str]:
    entry = next((entry for entry in case.manifest.files if entry.path == name), None)
    path = case.folder / name
    if not case.prefix and entry and path.is_file() and sha256_of(path) != entry.sha256:
        yield (
            f"file '{name}' is not the one of the manifest: {meaning} are not those that the "
            "model was converted with; convert again"
        )


def _tokenizer(case: Case) -> Iterator[str]:
    yield from _identity(case, "tokenizer.json", "its tokens")


def _labels(case: Case) -> Iterator[str]:
    yield from _identity(case, "endpoint.json", "its labels and lengths")
    endpoint, manifest = case.endpoint, case.manifest
    if endpoint is None:
        return
    for field in ("bundle_version", "bundle_hash", "task"):
        if getattr(endpoint, field) != getattr(manifest, field):
            yield (
                f"endpoint.json and manifest.json are of different bundles: field '{field}' "
                "differs; convert again"
            )
    if endpoint.classification is not None:
        yield from _label_list(endpoint.classification.labels, endpoint, manifest)


def _label_list(labels: tuple[str, ...], endpoint: Endpoint, manifest: Manifest) -> Iterator[str]:
    width = endpoint.outputs[0].dims[-1]
    if width not in (-1, len(labels)):
        yield (
            f"endpoint.json has {len(labels)} labels and the model {width} columns; correct the "
            "model's id2label and convert again"
        )
    answer = manifest.golden.answer
    golden = answer.get("label") if isinstance(answer, dict) else None
    if golden is not None and golden not in labels:
        yield (
            "the manifest's golden answer is a label that endpoint.json does not have: the label "
            "list is another model's; convert again"
        )


def _onnx(case: Case) -> Iterator[str]:
    listed = set(_model_files(case)[1])
    for path, entry in case.engine_files(".onnx"):
        yield from onnx_faults(path, entry.path, case.server)
        yield from place_faults(path, entry.path, listed)


def _openvino(case: Case) -> Iterator[str]:
    if case.manifest.engine == OPENVINO:
        for path, entry in case.engine_files(".xml"):
            yield from ir_faults(path, entry.path)


def _plan(case: Case) -> Iterator[str]:
    names = [entry.path for entry in case.manifest.files]
    if case.manifest.engine == "tensorrt" and not any(name.endswith(".plan") for name in names):
        yield "the manifest's engine is tensorrt, and it lists no .plan file; convert again"
    for path, entry in case.engine_files(".plan"):
        yield from plan_faults(path, entry.path, case.manifest.tensorrt or {}, case.server)


def _vllm(case: Case) -> Iterator[str]:
    if case.manifest.engine == VLLM:
        yield from vllm_faults(*_model_files(case), case.server)


def _torch(case: Case) -> Iterator[str]:
    if case.manifest.engine == TORCH:
        yield from torch_faults(*_model_files(case), case.server)


def _model_files(case: Case) -> tuple[Path, list[str]]:
    """The folder of the model's files, and their names in the manifest."""
    names = [
        entry.path.removeprefix("model/")
        for entry in case.manifest.files
        if entry.path.startswith("model/")
    ]
    return case.folder if case.prefix else case.folder / "model", names


def _identity_of_all(case: Case) -> Iterator[str]:
    """The bundle is of its number; in the controller, which has the model alone, not asked here."""
    path = case.folder / PREPROCESS
    if case.prefix or not path.is_file():
        return
    raw = path.read_bytes()
    found = check_preprocess(raw, model_parts(case.manifest.files))
    if found != Identity(case.manifest.bundle_version, case.manifest.bundle_hash):
        yield (
            "preprocess.py and manifest.json are of different bundles; deploy the bundle as it was "
            "converted, or convert again"
        )
    for name, content in data_of(raw).items():
        file = case.folder / name
        if name != PARTS and file.is_file() and content != file.read_bytes():
            yield f"preprocess.py carries another '{name}' than the bundle's; convert again"


def _files(case: Case) -> Iterator[str]:
    verify_files(case.manifest, case.folder, prefix=case.prefix)
    yield from ()


# In the order of their cost: what a header says comes before the hashes of all files.
CHECKS: dict[str, Callable[[Case], Iterator[str]]] = {
    "kit": _kit,
    "plan": _plan,
    "onnx": _onnx,
    "openvino": _openvino,
    "vllm": _vllm,
    "torch": _torch,
    "names": _names,
    "configuration": _configuration,
    "tokenizer": _tokenizer,
    "labels": _labels,
    "files": _files,
    "identity": _identity_of_all,
}
