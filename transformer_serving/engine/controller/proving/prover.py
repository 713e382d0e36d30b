"""Proves a version through Triton before Triton serves it under its own name.

Triton's readiness is what workers act on, so a version must not be ready before it is proven. It
is loaded as the model PROOF_MODEL instead, asked its bundle's whole parity set, and unloaded. No
endpoint can have that name, so no client can ask it. One proof runs at a time: in all the world of
this Triton there is one copy more, on each GPU that the model is for, and it is gone before the
version itself is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from transformer_serving.contract.engine_parameters import MAX_WAITING
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.manifest import FILE_NAME as MANIFEST
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.proving.gpus import Gpus
from transformer_serving.engine.controller.proving.machine import Machine
from transformer_serving.engine.controller.proving.proofs import Passed, Proofs
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.triton.server import RequestFailed, Triton, TritonAway
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.model_config import (
    THREAD_PARAMETERS,
    ModelConfig,
    from_text,
    to_text,
    with_versions,
)
from transformer_serving.engine.proof.greedy import Asked, Continued, prove_greedy
from transformer_serving.engine.proof.greedy_set import GreedySet, is_greedy_set, read_greedy_set
from transformer_serving.engine.proof.parity_set import (
    FILE_NAME as PARITY_SET,
    ParitySet,
    read_parity_set,
)
from transformer_serving.engine.proof.verdict import Proof, prove

_log = logging.getLogger(__name__)

# No endpoint can have it, by contract.naming's SERVED.
PROOF_MODEL = ".proof"
# What changes how fast an engine answers, but not what.
_NOT_OF_THE_ANSWERS = (
    "name",
    "version_policy",
    "instance_group",
    "dynamic_batching",
    "model_warmup",
)


class ProofFailed(EngineError):
    """The engine's answers differ from the reference's on this machine; the version is not served.

    `model_id` is the ClearML model's, by which `deploy` knows its own.
    """

    def __init__(self, reason: str, version: Version) -> None:
        super().__init__(reason)
        self.bundle_version = version.bundle_version
        self.model_id = version.model_id


def subject_of(folder: Path, config: ModelConfig) -> str:
    """What a proof of these files is a proof of; '' where the bundle has no parity set.

    The manifest holds the bundle's hash and that of every file.
    """
    if not (folder / PARITY_SET).is_file() or not (folder / MANIFEST).is_file():
        return ""
    part = model_config_pb2.ModelConfig()
    part.CopyFrom(config)
    for field in _NOT_OF_THE_ANSWERS:
        part.ClearField(field)
    for name in THREAD_PARAMETERS:
        part.parameters.pop(name, None)
    manifest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([manifest, to_text(part)]).encode()).hexdigest()


class Prover:
    """Used from several threads. `proving` are the models whose proof runs or waits its turn."""

    def __init__(self, triton: Triton, repository: Repository, proofs: Proofs) -> None:
        self._triton = triton
        self._repository = repository
        self._proofs = proofs
        self.gpus = Gpus(proofs)
        self._turn = threading.Lock()
        # Where proofs are of; None before that is known.
        self.machine: Machine | None = None
        self._proving: list[str] = []

    @property
    def proving(self) -> frozenset[str]:
        return frozenset(self._proving)

    def on(self, machine: Machine) -> None:
        """From now on proofs are of this machine."""
        self.machine = machine

    def passed(self, version: Version) -> Passed | None:
        """The version's proof on this machine; None without one, or before the machine is known."""
        if self.machine is None or not version.subject:
            return None
        return self._proofs.get(self.machine.key(version.subject, version.backend))

    def unproven(self, records: Iterable[ModelRecord]) -> frozenset[str]:
        """The models whose version in service ought to be proven on this machine, and is not."""
        if self.machine is None:
            return frozenset()
        return frozenset(
            record.model
            for record in records
            if record.current.subject and self.passed(record.current) is None
        )

    def require(
        self, model: str, version: Version, begins: Callable[[], None] = lambda: None
    ) -> None:
        """Return once the version is proven, or has nothing to be proven by; `begins` is called
        where it is loaded for that, once its turn has come.

        Raises ProofFailed; LoadFailed, BackendDied and TritonAway as a load does.
        """
        if not version.subject or self.passed(version) is not None:
            return
        self._proving.append(model)
        try:
            with self._turn:
                # The same bundle under two names is proven once.
                if self.passed(version) is None:
                    begins()
                    self._keep(version, *self._prove(model, version))
        finally:
            self._proving.remove(model)

    def clear(self) -> None:
        """Unload and delete what a proof that was cut short has left."""
        with self._turn:
            self._clear()

    def _keep(self, version: Version, proof: Proof, seconds: float) -> None:
        machine = self._known()
        if proof.fault is not None:
            raise ProofFailed(
                f"its engine's answers differ from the reference's on this machine "
                f"({machine.name}): {proof.fault}",
                version,
            )
        row = Passed(
            machine.key(version.subject, version.backend),
            version.bundle_version,
            time.time(),
            round(seconds, 3),
            proof.largest_difference,
            proof.lowest_cosine,
        )
        self._proofs.add(row)

    def _prove(self, model: str, version: Version) -> tuple[Proof, float]:
        """The proof and the seconds of all of it."""
        files = self._repository.files(model, version.token)
        try:
            raw = (files / PARITY_SET).read_bytes()
            parity_set = read_greedy_set(raw) if is_greedy_set(raw) else read_parity_set(raw)
        except (OSError, ContractError) as error:
            raise ProofFailed(f"its {PARITY_SET} cannot be read: {error}", version) from None
        begun = time.monotonic()
        with self._installed(model, version) as ask:
            loaded = time.monotonic()
            proof = _asked(parity_set, ask)
            ask.check()
            asked = time.monotonic()
        ended = time.monotonic()
        _log.info(
            "%s: proof of bundle %s: loaded in %.2f s, asked in %.2f s, unloaded in %.2f s",
            *(model, version.bundle_version, loaded - begun, asked - loaded, ended - asked),
        )
        return proof, ended - begun

    @contextlib.contextmanager
    def _installed(self, model: str, version: Version) -> Iterator[Asking]:
        """The version's files as the proof's model; the block may ask it."""
        config = _proof_config(version)
        self._clear()
        try:
            tokens = {version.number: version.token}
            self._repository.install(PROOF_MODEL, tokens, to_text(config), files_of=model)
            self._triton.load(PROOF_MODEL, version.number)
            yield Asking(self._triton, config, version.number)
        finally:
            # Of a Triton that went away nothing is left but the files; one that comes back with
            # the model still loaded is cleared by the service.
            with contextlib.suppress(EngineError):
                self._triton.unload_wholly(PROOF_MODEL)
            self._repository.remove(PROOF_MODEL)

    def _clear(self) -> None:
        self._triton.unload_wholly(PROOF_MODEL)
        self._repository.remove(PROOF_MODEL)

    def _known(self) -> Machine:
        if self.machine is None:
            raise EngineError("Triton has not said yet what it is; tried again")
        return self.machine


class Asking:
    """Asks the proof's model. A proof takes what is raised for the engine's fault of one call, so
    a Triton that goes away is remembered, and told by `check`."""

    def __init__(self, triton: Triton, config: ModelConfig, number: int) -> None:
        self._triton = triton
        self._config = config
        self._number = number
        self._away: TritonAway | None = None
        self._failed = False

    @property
    def max_batch_size(self) -> int:
        return int(self._config.max_batch_size)

    def __call__(
        self, tensors: Mapping[str, NDArray[Any]], wanted: Sequence[str]
    ) -> Mapping[str, NDArray[Any]]:
        if self._away is not None:
            raise self._away
        with self._noted():
            return self._triton.infer(self._config, self._number, tensors, wanted)

    def generate(self, asked: Sequence[Asked]) -> Sequence[Continued]:
        """The same of a language model."""
        if self._away is not None:
            raise self._away
        with self._noted():
            return self._triton.generate(self._config, self._number, asked)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except TritonAway as away:
            self._away = away
            raise
        except RequestFailed:
            self._failed = True
            raise

    def check(self) -> None:
        """Raises TritonAway where that, and no answer, is what was wrong.

        An engine that died of a call is unloaded as dead: what it did before counts.
        """
        if self._away is not None and not self._failed:
            raise self._away


def _asked(found: ParitySet | GreedySet, ask: Asking) -> Proof:
    if isinstance(found, GreedySet):
        return prove_greedy(found, ask.generate).proof
    # An endpoint's --aux-config may lower what one call holds.
    most = min(found.max_batch_size, ask.max_batch_size)
    return prove(dataclasses.replace(found, max_batch_size=most), ask)


def _proof_config(version: Version) -> ModelConfig:
    """The version's own, without warm-up and with one instance of each group, on each of its GPUs:
    where Triton has none, it refuses a group that names one, and nvidia-smi may see what Triton
    does not.

    A language model is asked all prompts at one time, so as many may wait.
    """
    config = with_versions(from_text(version.config), PROOF_MODEL, [version.number])
    config.ClearField("model_warmup")
    for group in config.instance_group:
        group.count = 1
    if MAX_WAITING.name in config.parameters:
        config.parameters[MAX_WAITING.name].string_value = str(MAX_WAITING.high)
    return config
