"""Bundles kept in a folder, the demo's and the benchmarks': found again there, or built where what
makes them has changed.

Tested by tests/demo/test_kept.py and tests/stack/test_demo_folder.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.file_lock import taken, wait_for
from transformer_serving.desk.step_report import StepReport

ROOT = Path(__file__).resolve().parents[3]
_STAMP = "built.json"
_BIG = 1 << 24
# What is packed around the models: a change here writes the bundles again with the same models.
_PACKED_SOURCES = (
    "transformer_serving/contract",
    "preprocess",
    "transformer_serving/engine/model_config.py",
    "transformer_serving/desk/bundle",
)


@dataclass(frozen=True)
class Recipe:
    """`names` of the bundles, a hash of what their models are made from, and what makes them in a
    folder."""

    names: tuple[str, ...]
    models: str
    build: Callable[[Path], None]


def bring_up_to_date(target: Path, recipe: Recipe, report: StepReport) -> None:
    """Afterwards `target` has a folder a bundle. Finding them built loads no torch."""
    with _alone(target, report):
        stamp = target / _STAMP
        wanted = {"models": recipe.models, "packing": packing_hash()}
        found = _stamped(stamp)
        if found == wanted and _intact(target, recipe.names):
            report(f"the models in {target} are up to date")
            return
        stamp.unlink(missing_ok=True)
        if found.get("models") != recipe.models or not _renewed(target, recipe.names, report):
            recipe.build(target)
        stamp.write_text(json.dumps(wanted) + "\n", "utf-8")


def packing_hash() -> str:
    """sha256 over the sources that go into a bundle or decide what its small files say."""
    return hash_of([ROOT / name for name in _PACKED_SOURCES], seed="")


def hash_of(places: Iterable[Path], *, seed: str) -> str:
    """sha256 over `seed` and the files and folders; of files over 16 MiB their size and time."""
    digest = hashlib.sha256(seed.encode())
    for path in _files(places):
        digest.update(f"{path.name}\0".encode())
        status = path.stat()
        if status.st_size > _BIG:
            # 90 MB of an installed package: size and time stand for the bytes.
            digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        else:
            files = (path for path in place.rglob("*") if path.is_file())
            yield from sorted(path for path in files if path.suffix != ".pyc")


@contextmanager
def _alone(target: Path, report: StepReport) -> Iterator[None]:
    """One build at a time in `target`; what a killed one left behind is removed first."""
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        if not taken(lock):
            report(f"waiting for another build in {target} to end")
            wait_for(lock)
        for left in target.glob(".*.*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        yield


def _stamped(stamp: Path) -> dict[str, Any]:
    try:
        found = json.loads(stamp.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _intact(target: Path, names: Iterable[str]) -> bool:
    from transformer_serving.desk.bundle.folder import open_bundle

    return _all_done(open_bundle, target, names)


def _renewed(target: Path, names: Iterable[str], report: StepReport) -> bool:
    """Whether the bundles there could be written again with today's code around the models."""
    from transformer_serving.desk.bundle.writer import renew_bundle

    report("the models are unchanged; writing the bundles again with the changed code")
    return _all_done(renew_bundle, target, names)


def _all_done(step: Callable[[Path], object], target: Path, names: Iterable[str]) -> bool:
    try:
        for name in names:
            step(target / name)
    except (ContractError, Failure, OSError):
        return False
    return True
