"""A bundle is whole, says what it is made of, and has the same version for the same parts."""

from __future__ import annotations

import ast
import errno
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kept_graphs import KeptGraphs, conversions_of
from tests.tiny_models import save_classifier
from transformer_serving.contract.endpoint import Recorded, read_endpoint
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.manifest import read_manifest, verify_files
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.builders.onnxruntime import build_onnxruntime
from transformer_serving.desk.builders.table import open_engine
from transformer_serving.desk.bundle import preprocess_file
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.writer import (
    check_target,
    content_of,
    renew_bundle,
    write_bundle,
)
from transformer_serving.desk.cli import main
from transformer_serving.desk.conversion.encoder import STEPS, Converted, ConvertRequest, convert
from transformer_serving.desk.deploy.plain_triton import write_repository
from transformer_serving.desk.deploy.registry import registry_folder
from transformer_serving.desk.failure import ConversionRefused, Failure
from transformer_serving.desk.parity.shapes import infer_of
from transformer_serving.engine.model_config import from_text
from transformer_serving.engine.proof.parity_set import ParitySet, read_parity_set
from transformer_serving.engine.proof.verdict import prove


def convert_quietly(request: ConvertRequest, target: Path) -> Converted:
    return convert(request, target, lambda step, detail: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bundle(tmp_path: Path, built: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def built(model: Path, kept_graphs: KeptGraphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("built") / "bundle"
    with conversions_of(kept_graphs):
        convert_quietly(ConvertRequest(str(model), precision="fp32"), target)
    return target


def test_layout_and_manifest(bundle: Path) -> None:
    files = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    manifest = read_manifest((bundle / "model/manifest.json").read_bytes())
    listed = {entry.path for entry in manifest.files}
    assert listed == {
        "endpoint.json",
        "preprocess.py",
        "tokenizer.json",
        "model/config.pbtxt",
        "model/model.bin",
        "model/model.xml",
        "model/parity.json",
    }
    assert files == listed | {"model/manifest.json"}
    verify_files(manifest, bundle)
    verify_files(manifest, bundle / "model", prefix="model/")
    assert manifest.source["model_type"] == "bert"
    assert manifest.golden.answer.keys() == {"label", "score"}
    endpoint = read_endpoint((bundle / "endpoint.json").read_bytes())
    assert endpoint.golden == manifest.golden.request
    assert endpoint.recorded == Recorded(manifest.golden.answer, manifest.golden.tolerance)
    assert manifest.golden.tolerance == 1e-4
    assert manifest.parity["label_agreement"] == 1.0


def test_every_file_carries_the_same_version(bundle: Path) -> None:
    checked = open_bundle(bundle)
    version = checked.manifest.bundle_version
    assert checked.endpoint.bundle_version == version
    assert checked.endpoint.bundle_hash == checked.manifest.bundle_hash
    code = (bundle / "preprocess.py").read_text("utf-8")
    assert f"# bundle-version: {version}" in "\n".join(code.splitlines()[:4])
    ast.parse(code)


@pytest.mark.parametrize("there", ["a bundle", "an empty folder", "nothing"])
def test_a_link_stays_and_what_it_leads_to_is_replaced(
    model: Path, kept_graphs: KeptGraphs, bundle: Path, tmp_path: Path, there: str
) -> None:
    """As where bundles are to lie on another disk."""
    place, link = tmp_path / "disk" / "place", tmp_path / "link"
    place.parent.mkdir()
    if there == "a bundle":
        bundle.rename(place)
    elif there == "an empty folder":
        place.mkdir()
    link.symlink_to(place)
    with conversions_of(kept_graphs):
        convert_quietly(ConvertRequest(str(model), precision="fp32"), link)
    assert link.readlink() == place
    assert not place.is_symlink()
    version = open_bundle(place).manifest.bundle_version
    assert renew_bundle(link).manifest.bundle_version == version
    assert link.readlink() == place
    assert [path.name for path in place.parent.iterdir()] == ["place"]


_WORKS = {
    "written": "replacing_folder(bundle.with_name('another'))",
    "renewed": "content_of(open_bundle(bundle), bundle.parent)",
    "uploaded": "registry_folder(open_bundle(bundle))",
}
_HELD = """
import sys
from pathlib import Path
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.writer import content_of
from transformer_serving.desk.deploy.registry import registry_folder
from transformer_serving.desk.folder_replacement import replacing_folder
bundle = Path(sys.argv[1])
with {work}:
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("work", _WORKS)
def test_what_was_made_of_a_bundle_by_who_is_killed_goes_with_the_next_command(
    bundle: Path, work: str
) -> None:
    def begun() -> subprocess.Popen[str]:
        code = _HELD.format(work=_WORKS[work])
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(bundle)],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    before = set(bundle.parent.iterdir())
    process = begun()
    process.kill()
    process.communicate()
    assert len(set(bundle.parent.iterdir()) - before) == 1
    begun().communicate("")
    left = {path.name for path in set(bundle.parent.iterdir()) - before}
    assert left == ({"another"} if work == "written" else set())


def test_config_is_what_triton_reads(bundle: Path) -> None:
    config = from_text((bundle / "model/config.pbtxt").read_text("utf-8"))
    endpoint = read_endpoint((bundle / "endpoint.json").read_bytes())
    assert config.backend == "openvino_text"
    assert config.default_model_filename == "model.xml"
    assert config.parameters["precision"].string_value == "fp32"
    positions = config.parameters["max_positions"].string_value
    assert positions == str(endpoint.tokens.max_length)
    assert config.max_batch_size == endpoint.limits.max_batch_size
    assert [tensor.name for tensor in config.input] == [tensor.name for tensor in endpoint.inputs]
    assert list(config.output[0].dims) == [3]
    assert len(config.model_warmup) == len(endpoint.tokens.buckets)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "endpoint.json", "preprocess.py", "model/model.bin"]
)
def test_a_changed_file_is_refused(bundle: Path, name: str) -> None:
    path = bundle / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Failure, match=name):
        open_bundle(bundle)


def test_a_file_too_many_or_too_few_is_refused(bundle: Path) -> None:
    (bundle / "model/extra.txt").write_text("x")
    with pytest.raises(Failure, match="extra"):
        open_bundle(bundle)
    (bundle / "model/extra.txt").unlink()
    (bundle / "tokenizer.json").unlink()
    with pytest.raises(Failure, match="missing"):
        open_bundle(bundle)


def test_the_same_inputs_give_the_same_bytes(built: Path, model: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    convert_quietly(ConvertRequest(str(model), precision="fp32"), again)
    for path in sorted(built.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(built)).read_bytes(), path.name


@pytest.mark.usefixtures("graphs_are_kept")
def test_onnxruntime_bundle_replaces_the_one_that_is_there(bundle: Path, model: Path) -> None:
    before = open_bundle(bundle)
    steps: list[str] = []
    request = ConvertRequest(str(model), engine="onnxruntime")
    done = convert(request, bundle, lambda step, detail: steps.append(step))
    assert tuple(steps) == STEPS
    after = open_bundle(bundle)
    assert after.manifest.bundle_version == done.bundle.manifest.bundle_version
    assert after.manifest.bundle_version != before.manifest.bundle_version
    assert (bundle / "model/model.onnx").is_file()
    assert not (bundle / "model/model.xml").exists()
    config = from_text((bundle / "model/config.pbtxt").read_text("utf-8"))
    assert (config.platform, config.backend) == ("onnxruntime_onnx", "onnxruntime")
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_renewing_keeps_the_model_and_changes_the_version_only_with_the_code(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_bundle(bundle)
    assert renew_bundle(bundle).manifest.bundle_version == before.manifest.bundle_version
    monkeypatch.setattr(preprocess_file, "code_hash", lambda: "0" * 12)
    after = renew_bundle(bundle)
    assert after.manifest.bundle_version != before.manifest.bundle_version
    assert open_bundle(bundle).manifest == after.manifest
    assert after.manifest.golden == before.manifest.golden
    kept = {entry.path: entry.sha256 for entry in before.manifest.files}
    for entry in after.manifest.files:
        if entry.path.startswith("model/") or entry.path == "tokenizer.json":
            assert entry.sha256 == kept[entry.path]
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_it_carries_what_proves_it(bundle: Path) -> None:
    carried = read_parity_set((bundle / "model/parity.json").read_bytes())
    opened = open_bundle(bundle)
    assert carried.reference == "the model itself in float32, by transformers.pipeline"
    assert carried.precision == "fp32"
    assert carried.buckets == opened.endpoint.tokens.buckets
    shapes = opened.manifest.parity["shapes"]
    assert shapes["fault"] is None
    assert shapes["calls"] > 2 * shapes["lengths"] > 0
    call = open_engine(EngineFiles("openvino", "fp32", (bundle / "model/model.xml",)))
    done = prove(carried, infer_of(carried, call))
    assert done.fault is None
    assert 0 < done.largest_difference < 1e-4


def test_a_parity_set_that_no_controller_takes_is_not_written(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "other"
    with content_of(open_bundle(bundle), tmp_path) as content:
        carried = content.parity_set
        assert isinstance(carried, ParitySet)
        short = replace(carried, rows=carried.rows[:1])
        with pytest.raises(ConversionRefused, match="'rows' must hold one of .* by --seq-len"):
            write_bundle(replace(content, parity_set=short), target)
    assert not target.exists()


def without_parity_set(bundle: Path) -> None:
    """As a kit that knew none wrote it."""
    (bundle / "model/parity.json").unlink()
    path = bundle / "model/manifest.json"
    values = json.loads(path.read_text("utf-8"))
    values["files"] = [row for row in values["files"] if row["path"] != "model/parity.json"]
    del values["parity"]["shapes"]
    path.write_text(json.dumps(values), "utf-8")


def test_a_bundle_without_a_parity_set_is_served_unproven(bundle: Path) -> None:
    without_parity_set(bundle)
    before = open_bundle(bundle).manifest.bundle_version
    shown = CliRunner().invoke(main, ["show", str(bundle)])
    assert "unproven where it is served: it has no parity set" in " ".join(
        shown.output.replace("│", " ").split()
    )
    renewed = renew_bundle(bundle)
    assert renewed.manifest.bundle_version == before
    assert not (bundle / "model/parity.json").exists()


def test_the_parity_set_is_nothing_that_a_plain_triton_loads(bundle: Path, tmp_path: Path) -> None:
    done = write_repository(open_bundle(bundle), tmp_path / "models", "tiny", ensemble=False)
    assert not list(done.folder.rglob("parity.json"))
    assert list(done.folder.rglob("model.xml"))


def test_another_folder_is_never_replaced(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    with pytest.raises(ConversionRefused, match="no bundle"):
        convert_quietly(ConvertRequest(str(model), precision="fp32"), target)
    assert (target / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "manifest",
    ['{"manifest_version": 3, "name": "an extension"}', '{"schema": 1}', "[]", "{"],
)
def test_another_programs_manifest_makes_no_bundle_of_a_folder(
    tmp_path: Path, manifest: str
) -> None:
    target = tmp_path / "app"
    (target / "model").mkdir(parents=True)
    (target / "model" / "manifest.json").write_text(manifest)
    with pytest.raises(ConversionRefused, match="'.*app' exists and is no bundle; name another"):
        check_target(target)


def test_a_bundle_of_another_kit_can_be_replaced(bundle: Path) -> None:
    """It need not be one that this kit reads."""
    path = bundle / "model" / "manifest.json"
    values = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**values, "schema": 99, "engine": "another"}), "utf-8")
    check_target(bundle)


def test_what_cannot_be_replaced_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    for target in (Path("."), Path(".."), Path("../inner"), inner):
        with pytest.raises(ConversionRefused, match="the folder that this command runs in"):
            check_target(target)
    check_target(Path("bundle"))
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == mounted)
    with pytest.raises(ConversionRefused, match=f"name a folder inside it: --output {mounted}/bun"):
        check_target(mounted)


@pytest.mark.parametrize("fault", [OSError("planted"), KeyboardInterrupt()])
def test_the_old_bundle_is_there_again_where_the_new_one_does_not_come(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    before = open_bundle(bundle).manifest
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise fault
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(type(fault)):
        renew_bundle(bundle)
    assert open_bundle(bundle).manifest == before
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


def test_without_second_names_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on exFAT and over SMB."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"graph")
    (tmp_path / "graph.onnx.data").write_bytes(b"weights")
    (tmp_path / "out").mkdir()
    files = build_onnxruntime("fp32", graph, tmp_path / "out", Shapes((8,), (1, 1, 1), []))
    assert [path.name for path in files.files] == ["model.onnx", "graph.onnx.data"]
    assert files.files[0].read_bytes() == graph.read_bytes()


def test_beside_a_bundle_that_nobody_may_write_to_an_upload_is_put_elsewhere(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp

    def read_only(suffix: str | None, prefix: str | None, dir: Path | None) -> str:
        if dir is not None:
            raise OSError(errno.EROFS, "Read-only file system")
        return make(suffix, prefix)

    monkeypatch.setattr("tempfile.mkdtemp", read_only)
    with registry_folder(open_bundle(bundle)) as folder:
        assert bundle.parent not in folder.parents
        assert (folder / "manifest.json").is_file()


@pytest.mark.usefixtures("graphs_are_kept")
def test_a_refused_conversion_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise ContractError("planted")

    monkeypatch.setattr(preprocess_file, "build", fail)
    with pytest.raises(ContractError, match="planted"):
        convert_quietly(ConvertRequest(str(model), precision="fp32"), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"engine": "abacus"}, "engine 'abacus'"),
        ({"engine": "onnxruntime", "precision": "bf16"}, "no precision 'bf16'"),
        ({"max_length": 4096}, "--max-length"),
    ],
)
def test_impossible_choices_are_refused(
    model: Path, tmp_path: Path, choice: dict[str, object], message: str
) -> None:
    with pytest.raises(ConversionRefused, match=message):
        convert_quietly(ConvertRequest(str(model), **choice), tmp_path / "bundle")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_manifest_is_plain_json_without_paths_of_the_machine(bundle: Path) -> None:
    text = (bundle / "model/manifest.json").read_text("utf-8")
    assert json.loads(text)["schema"] == 1
    assert str(Path.home()) not in text
    assert str(bundle.parent) not in text
