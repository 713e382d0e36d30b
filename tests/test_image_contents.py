"""Each image has what its programs import: the files that its Dockerfile copies, and its lock.

An import from a folder that another image has ends each container in its start, and no test of the
checkout sees it, which has all of them: where the kit is installed from the checkout, as for its
development, Python finds there what a copied package lacks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.test_imports import modules_of

ROOT = Path(__file__).parent.parent
KIT = "transformer_serving"
# What an image starts, by its ENTRYPOINT and CMD, by compose and by the chart, and what those start
# in their turn.
PROGRAMS = {
    "inference": ("gateway.__main__", "gateway.front_door", "gateway.server.worker"),
    "control-plane": ("desk.local.container", "control_plane.__main__"),
    "triton": (
        "engine.container", "engine.controller.__main__", "engine.controller.first_loads",
        "engine.image_backends", "engine.image_pin",
    ),
}  # fmt: skip
STARTED_BY_THEM = {
    "gateway.front_door", "gateway.server.worker", "control_plane", "engine.controller",
}  # fmt: skip
# The folder of the checkout is in no image: preprocess.py comes with a bundle.
LOADED = """
import importlib, json, sys
sys.modules["preprocess"] = None
for program in sys.argv[1:]:
    importlib.import_module(program)
files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
print(json.dumps({name: file for name, file in files.items() if file}))
"""
# What an embedded stack alone is asked for: record.py says so beside its import.
ELSEWHERE = {
    "control-plane": {("desk/local/record.py", f"{KIT}.engine.triton_process.TritonAddresses")}
}


def copied(image: str) -> list[Path]:
    """What of the kit the image's stage, and those that it is made from, copy."""
    file = ROOT / "docker" / ("triton" if image == "triton" else "python") / "Dockerfile"
    stages: dict[str, tuple[str, list[Path]]] = {}
    last = ""
    for line in file.read_text("utf-8").splitlines():
        if begins := re.fullmatch(r"FROM (\S+)(?: AS (\S+))?", line):
            last = begins[2] or "the last"
            stages[last] = (begins[1], [])
        elif copies := re.fullmatch(rf"COPY ({KIT}/\S+) /opt/transformer-serving/\S+", line):
            stages[last][1].append(Path(copies[1]))
    stage, found = last if image == "triton" else image, []
    while stage in stages:
        stage, files = stages[stage]
        found += files
    return found


@pytest.fixture(scope="module", params=PROGRAMS)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, dict[str, str]]:
    """An image, a folder with the files that it has of the kit, and what its programs import."""
    image, root = request.param, tmp_path_factory.mktemp("image")
    for file in copied(image):
        whole = ROOT / file
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, root / file)
    programs = [f"{KIT}.{name}" for name in PROGRAMS[image]]
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, *programs], env=environment, cwd=root, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return image, root, json.loads(ended.stdout.splitlines()[-1])


def test_the_programs_are_those_that_start() -> None:
    """PROGRAMS names each module that a Dockerfile, a compose file or the chart starts."""
    files = [*(ROOT / "docker").rglob("Dockerfile"), *(ROOT / "compose").rglob("*.yaml")]
    files += [file for file in (ROOT / "kubernetes").rglob("*") if file.is_file()]
    named = {
        module
        for file in files
        for module in re.findall(rf'"?-m"?,? "?{KIT}\.([\w.]+)', file.read_text("utf-8"))
    }
    known = {name.removesuffix(".__main__") for names in PROGRAMS.values() for name in names}
    assert known == named | STARTED_BY_THEM


def test_what_they_import_of_the_kit_is_in_the_image(
    loaded: tuple[str, Path, dict[str, str]],
) -> None:
    _, root, modules = loaded
    own = {name: Path(file) for name, file in modules.items() if name.partition(".")[0] == KIT}
    assert len(own) > len(PROGRAMS)
    assert {name: file for name, file in own.items() if root not in file.parents} == {}


def test_what_their_functions_import_of_the_kit_is_in_the_image(
    loaded: tuple[str, Path, dict[str, str]],
) -> None:
    image, root, modules = loaded
    missing = {
        (str(Path(file).relative_to(root / KIT)), wanted)
        for name, file in modules.items()
        if name.partition(".")[0] == KIT and file.endswith(".py")
        for wanted in modules_of(Path(file))
        if wanted.partition(".")[0] == KIT and not is_in(root, wanted)
    }
    assert missing == ELSEWHERE.get(image, set())


def test_what_they_import_of_others_is_in_its_lock(
    loaded: tuple[str, Path, dict[str, str]],
) -> None:
    """Of what the kit's own files import: others import this and that where it is there."""
    image, _, modules = loaded
    text = (ROOT / "requirements" / f"image-{image}.lock").read_text("utf-8")
    locked = {_plain(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    of_modules = packages_distributions()
    wanted = {
        _plain(distribution)
        for name, file in modules.items()
        if name.partition(".")[0] == KIT and file.endswith(".py")
        for module in modules_of(Path(file))
        if module.partition(".")[0] != KIT
        for distribution in of_modules.get(module.partition(".")[0], ())
    }
    assert wanted
    assert wanted - locked == set()


def is_in(root: Path, name: str) -> bool:
    """A module, or what stands in one."""
    path = root.joinpath(*name.split("."))
    return any(one.is_dir() or one.with_suffix(".py").is_file() for one in (path, path.parent))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
