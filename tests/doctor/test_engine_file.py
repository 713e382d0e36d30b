"""doctor --bundle FILE: what the file is, and what is wrong with one that is cut or foreign."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import example, given, settings, strategies as st

from tests.contract.onnx_files import constant_in_a_branch, field, onnx_bytes, outer_model
from tests.contract.plans import Plan, build
from tests.doctor.conftest import CLI, FITTING, PIN
from tests.engine.text_models import onnx_model
from transformer_serving.contract.gate.server_facts import ServerFacts
from transformer_serving.desk.doctor.engine_file import check_engine_file, engine_files
from transformer_serving.desk.doctor.finding import FAILURE, OK, WARNING, Finding
from transformer_serving.desk.versions.matrix import find_release
from transformer_serving.engine.backends.openvino_quiet import openvino

SERVER = ServerFacts(
    name="the image pin",
    tensorrt=PIN.tensorrt,
    onnxruntime=PIN.onnxruntime,
    compute_capability="8.6",
)


def told(path: Path, content: bytes | None = None) -> Finding:
    if content is not None:
        path.write_bytes(content)
    (finding,) = check_engine_file(path, SERVER)
    return finding


@pytest.fixture(scope="session")
def openvino_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small OpenVINO model as OpenVINO writes it; nobody changes it."""
    folder = tmp_path_factory.mktemp("openvino")
    (folder / "model.onnx").write_bytes(onnx_model())
    model = openvino.convert_model(folder / "model.onnx")
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    (folder / "model.onnx").unlink()
    return folder / "model.xml"


@pytest.fixture
def copy(openvino_model: Path, tmp_path: Path) -> Path:
    for suffix in (".xml", ".bin"):
        shutil.copy(openvino_model.with_suffix(suffix), tmp_path)
    return tmp_path / "model.xml"


def test_a_plan_says_its_version_its_releases_and_its_gpu(tmp_path: Path) -> None:
    found = told(tmp_path / "model.plan", build(FITTING))
    assert found.status == OK
    assert f"a plan of TensorRT {PIN.tensorrt}; Triton {PIN.release} has that version" in found.why
    assert "compute capability 8.6 (observed)" in found.why
    assert found.facts is not None
    assert found.facts["triton_releases"] == [PIN.release]


def test_a_plan_s_facts_are_all_that_its_header_says(tmp_path: Path) -> None:
    found = told(tmp_path / "model.plan", build(FITTING)).facts
    assert found == {
        "path": str(tmp_path / "model.plan"),
        "kind": "tensorrt",
        "form": "ftrt",
        "file_size": (tmp_path / "model.plan").stat().st_size,
        "tensorrt": PIN.tensorrt,
        "tensorrt_observed": False,
        "serialization": FITTING.serialization,
        "compute_capability": "8.6",
        "version_compatible": None,
        "sections": ("ENGN", "WGHT"),
        "triton_releases": [PIN.release],
    }


def test_a_plan_of_another_release_or_gpu_is_a_warning_with_the_fix(tmp_path: Path) -> None:
    newer = find_release("25.06")
    other = told(tmp_path / "model.plan", build(Plan(newer.tensorrt, 239, "8.6")))
    assert other.status == WARNING
    assert f"a plan of TensorRT {newer.tensorrt}; Triton {newer.release} has" in other.why
    assert f"the image pin has {PIN.tensorrt}" in other.why
    assert "transformer-serving versions use" in other.fix
    gpu = told(tmp_path / "model.plan", build(Plan(PIN.tensorrt, 239, "7.5")))
    assert gpu.status == WARNING
    assert "compute capability 7.5, the image pin has 8.6" in gpu.why
    nobody = told(tmp_path / "model.plan", build(Plan("10.5.1.1", 239, "8.6")))
    assert "no Triton release of 21.10 to" in nobody.why


def test_an_onnx_model_says_versions_producer_tensors_and_runtimes(tmp_path: Path) -> None:
    found = told(tmp_path / "model.onnx", onnx_model())
    assert found.status == OK
    for words in (
        "an ONNX model, opset 17, IR version 8",
        "inputs input_ids INT32[batch,tokens], attention_mask INT32[batch,tokens]",
        "outputs output FP32[batch,3]",
        f"ONNX Runtime {PIN.onnxruntime} of the image pin {PIN.release} reads such files",
    ):
        assert words in found.why
    assert "written by a writer" in told(tmp_path / "other.onnx", onnx_bytes(graph=0)).why


def test_an_onnx_model_that_the_pin_does_not_read_is_a_warning(tmp_path: Path) -> None:
    found = told(tmp_path / "model.onnx", onnx_bytes(opset=22, graph=0))
    assert found.status == WARNING
    assert f"of the image pin {PIN.release} does not load it: opset 22, at most 21" in found.why


def test_weights_beside_an_onnx_model_are_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load_model_from_string(onnx_model())
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="weights.data", size_threshold=0
    )
    found = told(path)
    assert found.facts is not None
    assert found.facts["files"] == ("weights.data",)
    (tmp_path / "weights.data").unlink()
    found = told(path)
    assert found.status == FAILURE
    assert "keeps weights in weights.data, and no such file lies beside it" in found.why
    (tmp_path.parent / "weights.data").touch()
    outside = told(path, outer_model("../weights.data", constant_in_a_branch))
    assert outside.status == FAILURE
    assert "keeps weights in ../weights.data, and no such file lies beside it" in outside.why


def test_an_openvino_model_says_its_version_its_writer_and_its_weights(copy: Path) -> None:
    found = told(copy)
    assert found.status == OK
    for words in (
        "an OpenVINO model, IR version 11",
        "written by OpenVINO 2026.",
        "inputs input_ids I32[?,?], attention_mask I32[?,?]",
        "outputs output",
    ):
        assert words in found.why
    assert re.search(r"model.bin has its \d+ bytes of weights", found.why)


def altered(text: str) -> Callable[[Path], None]:
    def alter(path: Path) -> None:
        path.write_text(path.read_text().replace("<edges>", text, 1))

    return alter


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda xml: xml.with_suffix(".bin").unlink(), "file 'model.bin' is missing"),
        (lambda xml: cut(xml.with_suffix(".bin")), "'model.bin' is cut short or another model's"),
        (lambda xml: cut(xml), "'model.xml' is cut short: its XML ends early"),
        (altered("<edges>&"), "'model.xml' is damaged: it is no XML, at line"),
        (altered("</edges>"), "'model.xml' is damaged: it is no XML, at line"),
        (lambda xml: xml.write_text("<svg/>"), "neither a TensorRT plan nor"),
        (lambda xml: xml.write_text("<?xml version='1.0'?><svg/>"), "it starts with <svg>"),
        (lambda xml: xml.write_text('<net version="7"/>'), "IR version 7; OpenVINO reads 10 and"),
        (lambda xml: xml.write_text("<net/>"), "states no version"),
        (
            lambda xml: xml.write_text(
                '<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "b">]><net/>'
            ),
            "it has a document type",
        ),
    ],
)
def test_an_openvino_model_that_is_not_whole(
    copy: Path, fault: Callable[[Path], None], said: str
) -> None:
    fault(copy)
    found = told(copy)
    assert found.status == FAILURE
    assert said in found.why
    assert found.fix


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.plan", build(FITTING)[:-1], "is cut short"),
        ("model.plan", build(FITTING) + b"x", "something was added"),
        ("model.plan", b"", "is empty"),
        ("model.plan", onnx_bytes(), "'model.plan' is an ONNX model by its first bytes; name it"),
        ("model.onnx", build(FITTING), "'model.onnx' is a TensorRT plan by its first bytes"),
        ("model.onnx", onnx_bytes()[:-3], "is no whole ONNX model"),
        ("model.onnx", field(1, 8) + field(8, field(2, 18)), "states no graph, IR version"),
        ("model.onnx", field(1, 8) + field(2, b"w") + field(8, field(2, 18)), "states no graph"),
        ("model.onnx", onnx_bytes() + field(7, bytes(3)), "graph cannot be read: field number 0"),
        ("model.pt", b"PK\x03\x04rest", "a zip archive, as torch.save writes"),
        ("model.onnx", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("model.onnx", b"<!DOCTYPE html><html>", "a web page"),
        ("model.plan", bytes(9999), "nothing but zeros"),
        ("x.safetensors", b'\x10\0\0\0\0\0\0\0{"a":1}', "a safetensors file"),
        ("model.plan", b"what is this", "of no kind that is known here"),
    ],
)
def test_what_is_no_whole_engine_says_what_it_is(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    found = told(tmp_path / name, content)
    assert found.status == FAILURE
    assert said in found.why
    assert found.fix


def test_a_folder_with_an_engine_is_described_and_a_bundle_is_not(copy: Path) -> None:
    assert engine_files(copy.parent) == (copy,)
    (copy.parent / "model").mkdir()
    (copy.parent / "model" / "manifest.json").write_text("{}")
    assert engine_files(copy.parent) == ()


def test_the_command_line_describes_a_file_in_text_and_json(copy: Path) -> None:
    def run(*arguments: str) -> str:
        command = [CLI, "doctor", "--state", str(copy.parent / "state"), "--bundle", str(copy)]
        return subprocess.run(
            [*command, *arguments], cwd=copy.parent, capture_output=True, text=True, check=False
        ).stdout

    assert re.search(r"ok +bundle: .*model\.xml is an OpenVINO model, IR version 11", run())
    rows = json.loads(run("--json"))["findings"]
    (row,) = [row for row in rows if row["check"] == "bundle"]
    assert row["facts"]["kind"] == "openvino"
    assert row["facts"]["version"] == 11


WHOLE = {
    ".plan": build(FITTING, weights=200),
    ".onnx": onnx_model(),
    ".xml": b'<net version="11"><layers><layer type="Parameter"><data shape="?"/></layer>'
    b"</layers></net>",
}


@settings(max_examples=300)
@example(".xml", [(0, b'<?xml version="1.0" encoding="utf-7"?>')], None)
@example(".xml", [(0, b'<?xml version="1.0" encoding="shift_jis"?>')], None)
@given(
    st.sampled_from(sorted(WHOLE)),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=12)), max_size=4),
    st.integers(0, 3000) | st.none(),
)
def test_no_bytes_end_in_anything_but_a_finding(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    changes: list[tuple[int, bytes]],
    kept: int | None,
) -> None:
    """A whole file, bytes put over it or into it, and cut anywhere."""
    content = bytearray(WHOLE[suffix])
    for at, new in changes:
        content[at : at + (len(new) if at else 0)] = new
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    found = told(path, bytes(content[:kept]))
    assert found.status in (OK, WARNING, FAILURE)
    assert found.why.isprintable()
    if found.status == FAILURE:
        assert found.fix
