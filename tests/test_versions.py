"""The version lock: read, moved, and the same in everything that names a version."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from click.testing import CliRunner

from scripts.lock import triton_python
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.onnx_limits import highest
from transformer_serving.contract.gate.release import older
from transformer_serving.contract.gate.server_facts import TENSORRT_VARIABLE, TRITON_VARIABLE
from transformer_serving.contract.gate.vllm_engine import FIRST_RELEASE, FIRST_TRITON
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.cli import main
from transformer_serving.desk.export.onnx import OPSET
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.versions.lock import LOCK_FILE, ImagePin, Lock, parse_lock, read_lock
from transformer_serving.desk.versions.matrix import (
    ENDED_BY_CHUNKS_BEFORE,
    UNKNOWN,
    ended_by_chunks,
    find_release,
    read_matrix,
    releases_with,
)
from transformer_serving.desk.versions.move import Move, check_evidence, use
from transformer_serving.engine.image_pin import PINNED_TENSORRT, PINNED_TRITON, difference

ROOT = Path(__file__).parent.parent
CLI = str(Path(sys.executable).with_name("transformer-serving"))
DOCKERFILE = Path("docker", "triton", "Dockerfile")


def tag(lock: Lock, image: str) -> str:
    return lock.base_images[image].value.split(":")[1]


# How texts name what the lock pins, and the lock's word for it.
MENTIONS: dict[str, Callable[[Lock], str]] = {
    r"clearml==(\d[\d.]*\d)": lambda lock: lock.packages["clearml"].value,
    r"\bclearml (\d+\.\d+\.\d+)": lambda lock: lock.packages["clearml"].value,
    r"clearml-serving(?:==| )(\d+\.\d+\.\d+)": lambda lock: lock.packages["clearml-serving"].value,
    r"nvidia-pytriton(?:==| )(\d+\.\d+\.\d+)": lambda lock: lock.embedded.nvidia_pytriton,
    r"\btritonserver (\d+\.\d+\.\d+)": lambda lock: lock.embedded.triton,
    r"nvcr\.io/nvidia/tritonserver:([\d.]+-py3)": lambda lock: lock.image.image.split(":")[1],
    r"nvcr\.io/nvidia/tritonserver:([\d.]+-vllm-\w+-py3)": lambda lock: lock.vllm_image.image.split(
        ":"
    )[1],
    r"python:(3\.\d+-[\w-]+)": lambda lock: lock.base_images["inference"].value.split(":")[1],
    r"haproxy:(\d[\w.-]*)": lambda lock: lock.base_images["balancer"].value.split(":")[1],
    r"prom/prometheus:(v\d[\w.-]*)": lambda lock: tag(lock, "prometheus"),
    r"prom/alertmanager:(v\d[\w.-]*)": lambda lock: tag(lock, "alertmanager"),
    r"grafana/grafana:(\d[\w.-]*)": lambda lock: tag(lock, "grafana"),
    r"TensorRT (\d+\.\d+\.\d+\.\d+)": lambda lock: lock.image.tensorrt,
}
SUFFIXES = {".md", ".py", ".toml", ".lock", ".yml", ".yaml", ".env", ".ipynb"}
NAMES = {"Makefile", "Dockerfile", "run"}
# They speak of other versions on purpose, or are the lock itself.
LEFT_OUT = (
    "docs/versions.md", "docs/decisions/", "transformer_serving/contract/",
    "transformer_serving/desk/versions/", "transformer_serving/desk/doctor/",
)  # fmt: skip


@pytest.fixture
def lock() -> Lock:
    return read_lock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy whose image pin is 24.10, wherever the kit's own is."""
    path = Path(shutil.copy(LOCK_FILE, tmp_path / "versions.toml"))
    use("24.10", path)
    return path


def texts() -> Iterator[tuple[str, str]]:
    """Every file that states versions: what runs, is installed, is built or is read by people."""
    for top in (
        "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile", ".ci", "docs",
        "requirements", "preprocess", "transformer_serving", "scripts",
        "docker", "compose", "kubernetes", "notebooks",
    ):  # fmt: skip
        paths = [ROOT / top] if (ROOT / top).is_file() else sorted((ROOT / top).rglob("*"))
        for path in paths:
            name = path.relative_to(ROOT).as_posix()
            known = path.suffix in SUFFIXES or path.name.split(".")[0] in NAMES
            if path.is_file() and known and not name.startswith(LEFT_OUT):
                yield name, path.read_text("utf-8")


def test_every_text_says_the_locks_versions(lock: Lock) -> None:
    seen = set()
    for name, text in texts():
        for pattern, wanted in MENTIONS.items():
            for stated in re.findall(pattern, text):
                assert stated == wanted(lock), f"{name} says {stated}, the lock {wanted(lock)}"
                seen.add((name, wanted(lock)))
    for name in ("CHANGELOG.md", "README.md", "pyproject.toml", "requirements/desk.lock"):
        assert (name, lock.packages["clearml-serving"].value) in seen
    assert ("requirements/carried.lock", lock.embedded.nvidia_pytriton) in seen


def test_the_changelog_names_the_release_it_was_tested_with(lock: Lock) -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"tritonserver {lock.embedded.triton} (release {lock.embedded.release})" in text


def test_pyproject_and_the_locks_pin_what_the_lock_pins(lock: Lock) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in ("clearml", "clearml-serving"):
        assert f"{name}=={lock.packages[name].value}" in project["dependencies"]
    first, last = lock.python[0], lock.python[-1]
    after = f"3.{int(last.split('.')[1]) + 1}"
    assert project["requires-python"] == f">={first},<{after}"
    assert lock.packages["nvidia-pytriton"].value == lock.embedded.nvidia_pytriton


def test_the_pins_are_rows_of_the_matrix(lock: Lock) -> None:
    row = find_release(lock.image.release)
    assert row.image == lock.image.image
    for field in set(ImagePin.__dataclass_fields__) - {"image", "tested_by"}:
        assert getattr(lock.image, field) == getattr(row, field)
    assert {"triton", "tensorrt"} <= row.verified
    assert find_release(lock.embedded.release).triton == lock.embedded.triton
    own = find_release(lock.vllm_image.release)
    assert (own.triton, own.python) == (lock.vllm_image.triton, lock.vllm_image.python)
    assert lock.vllm_image.image == own.image.replace("-py3", "-vllm-python-py3")
    assert not older(lock.vllm_image.triton, FIRST_TRITON)
    assert find_release(FIRST_RELEASE).triton == FIRST_TRITON


def test_releases_that_a_request_ends_are_those_before_one() -> None:
    rows = read_matrix()
    known = [row for row in rows if row.triton != UNKNOWN]
    ended = {row.release for row in known if ended_by_chunks(row.triton)}
    assert ended == {row.release for row in known if row.release < ENDED_BY_CHUNKS_BEFORE}
    assert f"A Triton before {ENDED_BY_CHUNKS_BEFORE} is ended" in run("versions")


def test_compose_builds_on_the_vllm_pin(lock: Lock) -> None:
    text = (ROOT / "compose" / "vllm.yaml").read_text("utf-8")
    arguments = yaml.safe_load(text)["services"]["triton"]["build"]["args"]
    stated = [arguments[f"TRITON_{name}"] for name in ("IMAGE", "RELEASE", "VERSION")]
    own = lock.vllm_image
    assert stated == [own.image, own.release, own.triton]


def test_every_pin_says_what_tests_it(lock: Lock) -> None:
    several = (*lock.packages.values(), *lock.base_images.values())
    pins: list[Any] = [*several, lock.embedded, lock.image, lock.vllm_image]
    assert all(pin.tested_by for pin in pins)
    assert lock.python_tested_by


def test_what_convert_writes_is_read_by_the_pinned_onnxruntime(lock: Lock) -> None:
    limit = highest(lock.image.onnxruntime, "opset")
    assert limit is not None
    assert limit >= OPSET


def test_the_matrix_is_whole_and_honest() -> None:
    rows = read_matrix()
    names = [row.release for row in rows]
    assert names == sorted(set(names))
    assert (names[0], names[-1]) == ("21.10", "26.09")
    for row in rows:
        assert not row.verified & row.indirect
        for cell in row.verified | row.indirect:
            assert getattr(row, cell) != UNKNOWN
        if row.tensorrt != UNKNOWN:
            assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", row.tensorrt)
    # Not 2.60.0, as one would count.
    assert find_release("25.07").triton == "2.59.1"
    assert releases_with("10.5.0.18") == ("24.10",)


def test_the_checkout_links_to_the_packages_file() -> None:
    link = ROOT / "versions.toml"
    assert link.is_symlink()
    assert link.resolve() == LOCK_FILE.resolve()


@pytest.mark.slow
def test_a_wheel_carries_lock_and_matrix(tmp_path: Path) -> None:
    source = tmp_path / "source"
    left_out = shutil.ignore_patterns("__pycache__", "node_modules")
    for package in ("preprocess", "transformer_serving"):
        shutil.copytree(ROOT / package, source / package, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
            "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", tmp_path, source,
        ],
        check=True, capture_output=True, timeout=180,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import transformer_serving.desk.versions.lock as l;"
        "import transformer_serving.desk.versions.matrix as m;"
        "print(l.LOCK_FILE, l.read_lock().image.release, len(m.read_matrix()))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    path, release, rows = done.stdout.split()
    assert Path(path).is_relative_to(tmp_path / "site")
    assert (release, rows) == (read_lock().image.release, str(len(read_matrix())))


def test_the_pin_moves_to_an_evidenced_row(file: Path) -> None:
    before = file.read_text("utf-8")
    move = use("25.06", file)
    assert move.before.release == "24.10"
    assert move.after == read_lock(file).image
    assert (move.after.triton, move.after.tensorrt) == ("2.59.0", "10.11.0.33")
    assert move.after.tested_by.startswith("nothing yet")
    assert any("engine tensorrt: convert it again" in line for line in move.rebuild)
    after = file.read_text("utf-8")
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert {new.split(" = ")[0] for _, new in changed} == set(ImagePin.__dataclass_fields__)
    assert not any(old.startswith("#") for old, _ in changed)
    assert [path.name for path in file.parent.iterdir()] == ["versions.toml"]


def test_moving_to_where_it_is_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    assert use("24.10", file).rebuild == ()
    assert file.read_bytes() == before


def test_moving_there_and_back_needs_the_same_rebuilds(file: Path) -> None:
    there = use("24.09", file)
    back = use("24.10", file)
    assert there.rebuild == back.rebuild
    # Both have ONNX Runtime 1.19.2 and Python 3.10.
    assert not any("onnxruntime" in line or "Python" in line for line in there.rebuild)


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("25.07", ["tensorrt is unknown", "tritonserver:25.07-py3", "dpkg -l | grep nvinfer"]),
        ("25.09", ["10.13.3.9 has no direct evidence", "tritonserver --version"]),
        ("26.09", ["triton 2.73.0 has no direct evidence", "python is unknown"]),
        ("23.08", ["tensorrt is unknown", "driver_min is unknown"]),
        ("22.01", ["has Python 3.8", "the kit needs 3.10 or newer", "choose 23.05 or newer"]),
        ("25.6", ["is not in the matrix, which has 21.10 to 26.09"]),
    ],
)
def test_a_row_without_evidence_is_refused(file: Path, release: str, words: list[str]) -> None:
    before = file.read_bytes()
    with pytest.raises(Failure) as caught:
        use(release, file)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2
    assert file.read_bytes() == before


def test_no_row_passes_on_whose_python_the_kit_cannot_run() -> None:
    old = [row for row in read_matrix() if row.python.startswith("3.8")]
    assert len(old) == 19
    for row in old:
        with pytest.raises(Failure, match=r"has Python 3\.8, and the kit needs 3\.10 or newer"):
            check_evidence(row)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a checkout has of the pin, at 24.10; its root."""
    inside = LOCK_FILE.relative_to(ROOT)
    for path in (inside, DOCKERFILE):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "versions.toml").symlink_to(inside)
    use("24.10", tmp_path / inside)
    return tmp_path


def arguments(root: Path) -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(.+)$", (root / DOCKERFILE).read_text("utf-8"), re.M))


def test_the_image_moves_with_the_pin(checkout: Path) -> None:
    before, others = (checkout / DOCKERFILE).read_text("utf-8"), arguments(checkout)
    move = use("25.06", checkout / "versions.toml")
    stated, pin = arguments(checkout), read_lock(checkout / "versions.toml").image
    assert move.after == pin
    names = ("TRITON_IMAGE", "TRITON_RELEASE", "TRITON_VERSION", "TENSORRT_VERSION")
    assert [stated[name] for name in names] == [pin.image, "25.06", pin.triton, pin.tensorrt]
    assert stated["ONNXRUNTIME_VERSION"] == pin.onnxruntime
    assert {name for name in stated if stated[name] != others[name]} == {
        *names, "ONNXRUNTIME_VERSION",
    }  # fmt: skip
    # What the image holds its base to, at its build and at each start.
    image = {TRITON_VARIABLE: pin.triton, TENSORRT_VARIABLE: pin.tensorrt}
    wanted = {PINNED_TRITON: stated[names[2]], PINNED_TENSORRT: stated[names[3]]}
    assert difference(image | wanted) is None
    assert any("compose.yaml build --pull, with the stack's --env" in line for line in move.rebuild)
    use("24.10", checkout / "versions.toml")
    assert (checkout / DOCKERFILE).read_text("utf-8") == before


def test_a_pin_that_moved_alone_gets_its_image(checkout: Path) -> None:
    lock, before = checkout / "versions.toml", (checkout / DOCKERFILE).read_bytes()
    use("25.06", lock)
    (checkout / DOCKERFILE).write_bytes(before)
    assert [line.partition(":")[0] for line in use("25.06", lock).rebuild] == ["the Triton image"]
    assert arguments(checkout)["TRITON_RELEASE"] == "25.06"
    assert use("25.06", lock).rebuild == ()


def test_where_one_cannot_be_written_neither_moves(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, dockerfile = checkout / LOCK_FILE.relative_to(ROOT), checkout / DOCKERFILE
    files = [(path, path.read_bytes()) for path in (lock, dockerfile)]

    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        if path == lock.resolve():
            raise PermissionError(13, "Permission denied")
        replace_file(path, *arguments, **options)

    monkeypatch.setattr("transformer_serving.desk.versions.move.replace_file", refuse)
    with pytest.raises(Failure, match="cannot be written .Permission denied., and the pin stays"):
        use("25.06", lock)
    assert [(path, path.read_bytes()) for path, _ in files] == files


def test_a_dockerfile_without_an_argument_is_named(checkout: Path) -> None:
    lock, dockerfile = checkout / "versions.toml", checkout / DOCKERFILE
    dockerfile.write_text(dockerfile.read_text("utf-8").replace("ARG TENSORRT_VERSION", "#"))
    before = lock.read_bytes()
    with pytest.raises(Failure, match="must have one line 'ARG TENSORRT_VERSION=...', got 0"):
        use("25.06", lock)
    assert lock.read_bytes() == before


def test_an_installed_kit_says_where_the_image_is_built(file: Path) -> None:
    (image,) = (line for line in use("25.06", file).rebuild if line.startswith("the Triton image"))
    assert "in a checkout of it the same command, then docker compose -f" in image


def test_the_images_lock_is_made_with_the_pins_python(file: Path) -> None:
    assert triton_python(file.read_text("utf-8")) == "python3.10"
    use("25.06", file)
    assert triton_python(file.read_text("utf-8")) == "python3.12"


def test_a_link_stays_a_link(file: Path) -> None:
    link = file.with_name("link.toml")
    link.symlink_to(file.name)
    use("25.06", link)
    assert link.is_symlink()
    assert read_lock(file).image.release == "25.06"


def test_a_file_laid_out_otherwise_keeps_its_layout(file: Path) -> None:
    """As somebody may have written it who merged two of them."""
    before = file.read_text("utf-8")
    section = before.partition("[image]\n")[2].partition("\n\n")[0]
    (line,) = (row for row in section.splitlines() if row.startswith("cuda = "))
    others = before.replace(f"\n[image]\n{section}\n", "")
    file.write_text(
        f"{others}\n[ image ]  # moved down\n{section}  # as yet\n".replace(
            line,
            f"  # the driver follows it\n  {line.replace(' = ', '=').replace(chr(34), chr(39))}",
        )
    )
    use("25.06", file)
    assert read_lock(file).image.release == "25.06"
    after = file.read_text("utf-8")
    assert after.startswith(others)
    assert "\n[ image ]  # moved down\n" in after
    assert f'\n  # the driver follows it\n  cuda="{read_lock(file).image.cuda}"\n' in after
    assert after.endswith('"  # as yet\n')


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "field 'schema' must be from 1 to 1, got 2"),
        ('cuda = "12.6.2"', "", "versions.toml.image: field 'cuda' is missing"),
        ('tested_by = "make test:', 'tested = "make test:', "field 'tested_by' is missing"),
        ("[image]", "[image", "versions.toml: "),
    ],
)
def test_a_broken_lock_names_the_field(file: Path, old: str, new: str, said: str) -> None:
    text = file.read_text("utf-8").replace(old, new)
    with pytest.raises(ContractError, match="versions.toml") as caught:
        parse_lock(text)
    assert said in str(caught.value)
    file.write_text(text)
    with pytest.raises(Failure, match="cannot be read"):
        read_lock(file)


def test_the_commands() -> None:
    printed = json.loads(run("versions", "--json"))
    assert printed["lock"]["image"]["release"] == read_lock().image.release
    assert len(printed["matrix"]) == len(read_matrix())
    table = run("versions")
    assert re.search(r"24\.10 +2\.51\.0 +10\.5\.0\.18 .* embedded", table)
    assert re.search(r"25\.09 +2\.61\.0 +10\.13\.3\.9 ~", table)
    assert "establish it: docker run --rm" in run("versions", "use", "25.07", code=2)


@pytest.mark.parametrize("command", [("--json", "use"), ("use", "--json")])
def test_the_move_is_printed_as_json(
    command: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = read_lock().image
    move = Move(pin, pin, ("a",))
    monkeypatch.setattr("transformer_serving.desk.versions.move.use", lambda _release: move)
    done = CliRunner().invoke(main, ["versions", *command, pin.release])
    assert json.loads(done.output)["after"]["release"] == pin.release


def run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([CLI, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr
