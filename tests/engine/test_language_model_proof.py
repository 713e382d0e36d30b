"""A language model's bundle in the controller: proven through Triton, refused, found dead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tritonclient.utils import InferenceServerException

from tests.engine.serving import Serving, serving
from tests.engine.streams import Caller, options
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from tests.language_models import save_language_model
from transformer_serving.contract.generation import Finish
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.manifest import entry_of, read_manifest
from transformer_serving.desk.builders.table import GENERATION_BACKENDS
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.triton_config import triton_tensors
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.deploy.model_add import NUMPY_DTYPES
from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields
from transformer_serving.engine.orphans import server_of
from transformer_serving.engine.proof.greedy_set import read_greedy_set

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("llama")
    model = save_language_model("llama", folder / "model")
    # Of calls that come together; a proof's come so, and are none of them refused.
    request = ConvertRequest(
        str(model), task=GENERATION, precision="fp32", engine_parameters={"max_waiting": "1"}
    )
    return convert(request, folder / "bundle", lambda step, detail: None).bundle


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Serving]:
    with running_triton(tmp_path / "t") as server, serving(server, tmp_path) as running:
        yield running


def fields(bundle: Bundle) -> EndpointFields:
    """As `deploy` adds the endpoint."""
    inputs, outputs = (
        TensorFields(
            [tensor.name for tensor in tensors],
            [NUMPY_DTYPES[tensor.dtype] for tensor in tensors],
            [list(tensor.dims) for tensor in tensors],
        )
        for tensors in triton_tensors(bundle.endpoint)
    )
    generation = bundle.endpoint.generation
    assert generation is not None
    backend = GENERATION_BACKENDS[generation.engine]
    return EndpointFields(inputs, outputs, {"backend": f'"{backend}"'})


def add(one: Serving, bundle: Bundle, model: Path, name: str) -> None:
    code = bundle.preprocess.read_text("utf-8")
    one.control_plane.add(name, model, code, fields=fields(bundle), framework="Other")


def copied(bundle: Bundle, folder: Path) -> Path:
    """The model's folder with a parity set in which one continuation is another."""
    target = folder / "wrong" / "model"
    target.mkdir(parents=True)
    for path in bundle.model_folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    found = read_greedy_set((target / "parity.json").read_bytes())
    row = found.rows[3]
    other = (row.continuation[0] + 1) % 300
    wrong = replace(
        row, continuation=(other, *row.continuation[1:]), margins=(9.0,) * len(row.margins)
    )
    rows = (*found.rows[:3], wrong, *found.rows[4:])
    (target / "parity.json").write_text(replace(found, rows=rows).to_json())
    manifest = read_manifest((target / "manifest.json").read_bytes())
    own = entry_of(target.parent, target / "parity.json")
    files = tuple(own if entry.path == own.path else entry for entry in manifest.files)
    (target / "manifest.json").write_text(replace(manifest, files=files).to_json())
    return target


def stubs(server: TritonServer) -> list[psutil.Process]:
    """The backend's processes: that of a proof ends a second or two after it."""
    triton = server_of(server.repository)
    assert triton is not None
    return [one for one in triton.children() if one.status() != psutil.STATUS_ZOMBIE]


def test_it_is_proven_then_served_and_comes_back_when_its_process_dies(
    one: Serving, bundle: Bundle, tmp_path: Path
) -> None:
    version = bundle.manifest.bundle_version
    add(one, bundle, bundle.model_folder, "writer")
    row = one.wait("writer", ready=True, proof="proven", proof_of=version)
    assert row["largest_difference"] < 1e-3
    known = read_greedy_set((bundle.model_folder / "parity.json").read_bytes()).rows[2]
    asked = Caller(one.server, "writer", known.prompt, options(len(known.continuation)))
    assert asked.end() is Finish.LENGTH
    assert tuple(asked.ids) == known.continuation
    wait_until(
        lambda: len(stubs(one.server)) == 1,
        60,
        lambda: str([other.cmdline() for other in stubs(one.server)]),
    )
    [stub] = stubs(one.server)
    stub.kill()
    lost = Caller(one.server, "writer", [1, 2], options(4))
    with pytest.raises(InferenceServerException):
        lost.end()
    one.wait("writer", ready=True)

    def answers() -> bool:
        try:
            return Caller(one.server, "writer", [1, 2], options(4)).end() is Finish.LENGTH
        except InferenceServerException:
            return False

    wait_until(answers, 30)
    assert [other.pid for other in stubs(one.server)] != [stub.pid]


@pytest.mark.long
def test_one_that_writes_otherwise_is_not_served(
    one: Serving, bundle: Bundle, tmp_path: Path
) -> None:
    add(one, bundle, copied(bundle, tmp_path), "writer")
    row = one.wait_reason("writer", "nothing is served")
    assert row["proof"] == "failed"
    assert "another token" in row["reason"]
