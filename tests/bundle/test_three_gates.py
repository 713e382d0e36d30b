"""A plan that its server cannot load is refused by `deploy` and by the controller alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import write_bundle
from tests.contract.plans import Plan, build
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.server_facts import COMPATIBLE_VARIABLE
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.signing import new_key, sign_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.controller.control_plane import verification
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields

# The image pin 24.10 of versions.toml, as its container would state it.
TENSORRT = "10.5.0.18"
FITTING = build(Plan(TENSORRT, 239, "8.6"))
STATED = {"version": TENSORRT, "compute_capability": "8.6"}

CASES = {
    "truncated": (FITTING[:-100], STATED, "cut short"),
    "another version": (
        build(Plan("10.5.0.17", 239, "8.6")),
        {**STATED, "version": "10.5.0.17"},
        "built by TensorRT 10.5.0.17",
    ),
    "another GPU": (
        build(Plan(TENSORRT, 239, "7.5")),
        {**STATED, "compute_capability": "7.5"},
        "compute capability 7.5",
    ),
}


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine as the pinned image on a GPU of compute capability 8.6."""
    monkeypatch.setenv("TRT_VERSION", TENSORRT)
    monkeypatch.setenv("TRANSFORMER_SERVING_COMPUTE_CAPABILITY", "8.6")
    verification._server.cache_clear()
    yield
    verification._server.cache_clear()


SERVED = Served(
    endpoint="e",
    model="e",
    model_id="m",
    preprocess=None,
    framework="tensorrt",
    fields=EndpointFields(),
    fingerprint="f",
    content="c",
)


def controller_says(folder: Path) -> str:
    with pytest.raises(ContractError) as caught:
        verification.verify(SERVED, folder / "model", b"# bundle-version: 77\n")
    return str(caught.value)


def deploy_says(folder: Path) -> str:
    with pytest.raises(Failure) as caught:
        open_bundle(folder)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_a_plan_that_does_not_fit(
    case: str, tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    content, stated, words = CASES[case]
    write_bundle(tmp_path, endpoint_fields, engine="tensorrt", content=content, tensorrt=stated)
    assert words in deploy_says(tmp_path)
    assert words in controller_says(tmp_path)


def test_a_tampered_plan(tmp_path: Path, endpoint_fields: dict[str, Any]) -> None:
    write_bundle(tmp_path, endpoint_fields, engine="tensorrt", content=FITTING, tensorrt=STATED)
    plan = tmp_path / "model" / "model.plan"
    changed = bytearray(plan.read_bytes())
    changed[-1] ^= 1
    plan.write_bytes(changed)
    for said in (deploy_says(tmp_path), controller_says(tmp_path)):
        assert "is not the one of the manifest" in said


def test_a_plan_is_signed_where_it_may_bring_code(
    tmp_path: Path, endpoint_fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Triton's flag each may, whatever its manifest says; also one without. One that is here
    already: tests/engine/test_trust.py."""
    folder, own = tmp_path / "bundle", tmp_path / "own"
    write_bundle(
        folder, endpoint_fields, engine="tensorrt", content=FITTING, tensorrt=STATED,
        config='input { name: "a" data_type: TYPE_INT32 dims: 1 }\n'
        'output { name: "b" data_type: TYPE_FP32 dims: 1 }\n',
    )  # fmt: skip
    served = replace(
        SERVED,
        fields=EndpointFields(
            TensorFields(["a"], ["int32"], [[1]]), TensorFields(["b"], ["float32"], [[1]])
        ),
    )
    model, code = folder / "model", folder / "preprocess.py"
    own.mkdir()
    (own / "model.plan").write_bytes(FITTING)
    verification.verify(served, model, code.read_bytes())
    verification.verify(served, own, None)
    monkeypatch.setenv(COMPATIBLE_VARIABLE, "1")
    verification._server.cache_clear()
    with pytest.raises(verification.Refused, match=TRUSTED_KEYS_VARIABLE):
        verification.verify(served, model, code.read_bytes())
    with pytest.raises(verification.Refused, match=TRUSTED_KEYS_VARIABLE):
        verification.verify(served, own, None)
    key = new_key("me", tmp_path)[1]
    sign_bundle(folder, key)
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, key.public)
    assert verification.verify(served, model, code.read_bytes()).signed_by == key.public
