"""A controller in this process: a control plane that is a list, a real Triton, real files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import sealed
from tests.engine.small_parity import small_parity_set
from tests.engine.text_models import LABELS, write_onnx, write_openvino, write_torch
from tests.engine.triton_server import TritonServer, wait_until
from transformer_serving.contract.identity import model_parts
from transformer_serving.contract.manifest import Golden, Manifest, entry_of, read_manifest
from transformer_serving.engine.controller.control_plane import verification
from transformer_serving.engine.controller.control_plane.served import Problem, Served
from transformer_serving.engine.controller.figures import TritonFigures
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.proving.proofs import Proofs
from transformer_serving.engine.controller.proving.prover import Prover
from transformer_serving.engine.controller.service import ControllerSettings, Service
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.controller.triton.server import Triton
from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text
from transformer_serving.engine.proof.parity_set import FILE_NAME as PARITY_SET

INPUTS = (TensorConfig("input_ids", "INT32", (-1,)), TensorConfig("attention_mask", "INT32", (-1,)))
FIELDS = EndpointFields(
    TensorFields(["input_ids", "attention_mask"], ["int32", "int32"], [[-1], [-1]]),
    TensorFields(["output"], ["float32"], [[LABELS]]),
    {"platform": '"onnxruntime_onnx"', "max_batch_size": 8},
)

_WRITERS: dict[str, tuple[Callable[..., Path], str]] = {
    "onnxruntime": (write_onnx, "onnxruntime"),
    "openvino": (write_openvino, "openvino_text"),
    "torch": (write_torch, "torch_text"),
}


def write_bundle(
    folder: Path,
    version: int,
    *,
    scale: float = 1.0,
    parity: bool = False,
    wrong_at: int | None = None,
    engine: str = "onnxruntime",
    batch: int = 8,
    parameters: Mapping[str, str] | None = None,
) -> Path:
    """The model/ folder of a bundle as the desk makes it; `parity` gives it a parity set."""
    model = folder / "model"
    write, backend = _WRITERS[engine]
    write(model, scale=scale, wrong_at=wrong_at)
    if parity:
        (model / PARITY_SET).write_text(small_parity_set(scale).to_json())
    config = build_config(
        name="",
        backend=backend,
        inputs=INPUTS,
        outputs=[TensorConfig("output", "FP32", (LABELS,))],
        max_batch_size=batch,
        parameters=parameters,
    )
    (model / "config.pbtxt").write_text(to_text(config))
    manifest = Manifest(
        bundle_version=version,
        bundle_hash="0" * 64,
        kit_version="0.1.0",
        task="text-classification",
        engine=engine,
        precision="fp32",
        files=tuple(entry_of(folder, path) for path in sorted(model.iterdir())),
        source={},
        tools={},
        golden=Golden({"text": "x"}, {}, 0.01),
        parity={},
    )
    (model / "manifest.json").write_text(manifest.to_json())
    return model


def preprocess_of(version: int | None) -> str:
    """Of a bundle whose number the test chose: it is checked where `identity` is not asked for."""
    return "" if version is None else f"# made for the test\n# bundle-version: {version}\n"


def write_sealed(folder: Path, *, scale: float = 1.0) -> tuple[Path, int, bytes]:
    """A bundle's model folder, the number that its parts make, and its preprocess.py."""
    model = write_bundle(folder, 2, scale=scale)
    manifest = read_manifest((model / "manifest.json").read_bytes())
    fields: dict[str, Any] = {}
    code = sealed(fields, model_parts(manifest.files), "class Preprocess:\n    pass\n")
    named = dataclasses.replace(manifest, **fields)
    (model / "manifest.json").write_text(named.to_json())
    return model, named.bundle_version, code


def numbers_are_chosen(patch: pytest.MonkeyPatch) -> None:
    """For a controller in this process: tests/contract/test_identity.py holds it to the hashes."""
    patch.setattr(verification, "check_preprocess", lambda raw, parts: None)


class ListedEndpoints:
    """A control plane whose content a test sets; `error` makes every call fail."""

    def __init__(self) -> None:
        self.served: dict[str, Served] = {}
        self.sources: dict[str, Path] = {}
        self.code: dict[str, str] = {}
        self.error: Exception | None = None
        self.reports: list[str] = []

    def add(
        self,
        endpoint: str,
        source: Path,
        code: str = "",
        *,
        fields: EndpointFields = FIELDS,
        framework: str = "ONNX",
    ) -> None:
        meaning = repr((str(source), code, fields))
        self.sources[endpoint], self.code[endpoint] = source, code
        self.served[endpoint] = Served(
            endpoint=endpoint,
            model=endpoint.replace("/", "_"),
            model_id=str(source),
            preprocess="py_code" if code else None,
            framework=framework,
            fields=fields,
            fingerprint=hashlib.sha256(meaning.encode()).hexdigest(),
            content=str(source),
        )

    def remove(self, endpoint: str) -> None:
        del self.served[endpoint]

    def endpoints(self) -> Sequence[Served]:
        if self.error:
            raise self.error
        return list(self.served.values())

    def problems(self) -> Sequence[Problem]:
        return []

    @contextlib.contextmanager
    def model(self, served: Served) -> Iterator[LocalCopy]:
        if self.error:
            raise self.error
        yield LocalCopy(self.sources[served.endpoint])

    def preprocess(self, served: Served) -> bytes | None:
        return self.code[served.endpoint].encode() or None

    def report(self, text: str) -> None:
        self.reports.append(text)

    def report_figures(self, metrics: str) -> None:
        self.reports.append(metrics)

    def configuration(self, *, fresh: bool = False) -> Mapping[str, str]:
        return {}

    def section(self, name: str) -> Mapping[str, Any]:
        return {}

    def configure(self, items: Mapping[str, Any]) -> None:
        raise AssertionError("nothing is to be rolled out")

    def of_instances(self, name: str) -> Mapping[str, str]:
        return {}

    def tag_model(self, model: str, tag: str) -> bool:
        raise AssertionError("nothing is to be rolled out")

    def close(self) -> None:
        pass


@dataclasses.dataclass
class Serving:
    """A running controller over a Triton."""

    server: TritonServer
    folder: Path
    control_plane: ListedEndpoints = dataclasses.field(default_factory=ListedEndpoints)
    grace_s: float = 1.0
    notice_s: float | None = None
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    triton: Triton | None = None
    page: MetricsPage | None = None

    def start(self) -> None:
        processes = BackendProcesses(self.server.repository)
        log = TritonLog(self.server.log)
        self.triton = Triton(self.server.grpc, log, processes, self.server.key)
        repository = Repository(self.server.repository)
        self.page = MetricsPage(None)
        service = Service(
            ControllerSettings(poll_s=0.1, grace_s=self.grace_s, notice_s=self.notice_s),
            self.control_plane,
            self.triton,
            repository,
            StateFile(self.folder / "state.json"),
            Prover(self.triton, repository, Proofs(self.folder / "proofs.json")),
            TritonFigures(None, lambda: None),
            self.page,
        )
        self.stop.clear()
        self.thread = threading.Thread(target=service.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def finish(self) -> None:
        self.stop.set()
        if self.thread is not None:
            self.thread.join(60)
        if self.triton is not None:
            self.triton.close()

    def status(self) -> dict[str, Any]:
        path = self.folder / "state.json"
        text = path.read_text() if path.is_file() else '{"endpoints": []}'
        return dict(json.loads(text))

    def row(self, endpoint: str) -> dict[str, Any]:
        rows = {row["endpoint"]: row for row in self.status()["endpoints"]}
        return dict(rows.get(endpoint, {}))

    def wait(self, endpoint: str, seconds: float = 60, **wanted: Any) -> dict[str, Any]:
        """Until the endpoint's row has these values."""
        wait_until(
            lambda: self.row(endpoint).items() >= wanted.items(),
            seconds,
            lambda: f"{self.row(endpoint)} instead of {wanted}",
        )
        return self.row(endpoint)

    def wait_reason(self, endpoint: str, part: str, seconds: float = 60) -> dict[str, Any]:
        wait_until(
            lambda: part in (self.row(endpoint).get("reason") or ""),
            seconds,
            lambda: f"{self.row(endpoint)} without {part!r}",
        )
        return self.row(endpoint)

    def wait_gone(self, endpoint: str) -> None:
        """Until the endpoint has no row and its model no folder."""
        folder = self.server.repository / endpoint.replace("/", "_")
        wait_until(lambda: not self.row(endpoint) and not folder.exists(), 60)


@contextlib.contextmanager
def serving(server: TritonServer, folder: Path, **options: Any) -> Iterator[Serving]:
    one = Serving(server, folder, **options)
    one.start()
    try:
        yield one
    finally:
        one.finish()
