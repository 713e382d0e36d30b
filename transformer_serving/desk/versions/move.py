"""Moving the image pin to another release: only to a row with evidence, and saying what follows.

In a checkout the arguments of the Triton image's Dockerfile move too, or neither does.

Tested by tests/test_versions.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit

from transformer_serving.contract.gate.release import parts
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.versions.lock import LOCK_FILE, ImagePin, parse_lock
from transformer_serving.desk.versions.matrix import UNKNOWN, Release, find_release, read_matrix

# A plan works with exactly one TensorRT, and Triton's version decides which backends there are.
EVIDENCED = ("triton", "tensorrt")
# What may not stay unknown either, though it may come from another image of the month.
KNOWN = ("cuda", "driver_min", "onnxruntime", "python")
# What the controller and our backends are written for.
_OLDEST_PYTHON = "3.10"
_UNTESTED = "nothing yet: the pin was moved here and no test has run the image"
# In a checkout, from its root, and each argument's field of the pin.
_DOCKERFILE = Path("docker", "triton", "Dockerfile")
_ARGUMENTS = {
    "TRITON_IMAGE": "image",
    "TRITON_RELEASE": "release",
    "TRITON_VERSION": "triton",
    "TENSORRT_VERSION": "tensorrt",
    "ONNXRUNTIME_VERSION": "onnxruntime",
}
# The file has the tag by which the image is built and started.
_BUILD = "docker compose -f compose/compose.yaml build --pull, with the stack's --env-file"
_IMAGE_ELSEWHERE = (
    "the Triton image, whose Dockerfile an installed kit has not: in a checkout of it the same "
    f"command, then {_BUILD}"
)

# A field of the pin, and what has to be done again when it changes.
_REBUILD = {
    "tensorrt": "every bundle with engine tensorrt: convert it again, on each kind of GPU",
    "python": "the lock of what runs inside the image: make lock, with its Python on PATH; then "
    "the image",
    "image": f"the Triton image: {_BUILD}",
    "onnxruntime": "bundles with engine onnxruntime: deploy them again, which compares opsets",
    "driver_min": f"the hosts' NVIDIA drivers: {command_line('doctor')}",
    "tritonclient": "the inference images: the client is pinned with the server",
}


@dataclass(frozen=True)
class Move:
    """What `versions use` did: the pin before and after, and what must be rebuilt for it."""

    before: ImagePin
    after: ImagePin
    rebuild: tuple[str, ...]


def use(release: str, path: Path = LOCK_FILE) -> Move:
    """Move the image pin in versions.toml, and in the Dockerfile of the checkout that it lies in.

    Raises Failure for a row without evidence (2), and for a file that cannot be written, when none
    is changed.
    """
    row = find_release(release)
    check_evidence(row)
    text = path.read_text("utf-8")
    before = parse_lock(text).image
    after = _pin(row, before)
    changed: dict[Path, str] = {}
    dockerfile = dockerfile_of(path)
    if dockerfile is not None:
        old = dockerfile.read_text("utf-8")
        new = _with_arguments(old, after, dockerfile)
        if new != old:  # also where the pin was moved without it
            changed[dockerfile] = new
    if after.release != before.release:
        # The last one: whoever is ended before it does both again by the same command.
        changed[path.resolve()] = _rewritten(text, after)
    _write_all(changed)
    return Move(before, after, rebuilds(before, after, dockerfile, changed))


def dockerfile_of(lock: Path) -> Path | None:
    """The Dockerfile of the Triton image beside the package; None for an installed kit."""
    found = [root / _DOCKERFILE for root in lock.resolve().parents[3:4]]
    return next((path for path in found if path.is_file()), None)


def check_evidence(row: Release) -> None:
    """Raises Failure (exit code 2) for a Python that the kit cannot run on, and else with the
    command that would establish what is missing."""
    if not _python_runs(row):
        first = next(one.release for one in read_matrix() if _python_runs(one))
        raise Failure(
            f"release {row.release} has Python {row.python}, and the kit needs "
            f"{_OLDEST_PYTHON} or newer beside Triton; choose {first} or newer",
            exit_code=2,
        )
    unproven = [cell for cell in EVIDENCED if row.evidence(cell) != "verified"]
    missing = [cell for cell in KNOWN if getattr(row, cell) == UNKNOWN]
    if not unproven and not missing:
        return
    said = [_lack(row, cell) for cell in unproven] + [f"{cell} is unknown" for cell in missing]
    raise Failure(
        f"release {row.release} is not evidenced: {', '.join(said)}"
        + (f" ({row.note})" if row.note else "")
        + f"; establish it: {row.command([*unproven, *missing])} and enter it into matrix.csv",
        exit_code=2,
    )


def _python_runs(row: Release) -> bool:
    if row.python == UNKNOWN:
        return True
    return parts(row.python)[:2] >= parts(_OLDEST_PYTHON)


def _lack(row: Release, cell: str) -> str:
    value = getattr(row, cell)
    if value == UNKNOWN:
        return f"{cell} is unknown"
    return f"{cell} {value} has no direct evidence ({row.evidence(cell)})"


def rebuilds(
    before: ImagePin, after: ImagePin, dockerfile: Path | None, changed: Collection[Path]
) -> tuple[str, ...]:
    """What has to be built again after a move that changed these files."""
    fields = {name for name in _REBUILD if getattr(before, name) != getattr(after, name)}
    if dockerfile in changed:
        fields.add("image")
    texts = dict(_REBUILD)
    if dockerfile is None:
        texts["image"] = _IMAGE_ELSEWHERE
    return tuple(text for name, text in texts.items() if name in fields)


def _pin(row: Release, before: ImagePin) -> ImagePin:
    return ImagePin(
        release=row.release,
        image=row.image,
        triton=row.triton,
        tensorrt=row.tensorrt,
        cuda=row.cuda,
        driver_min=row.driver_min,
        onnxruntime=row.onnxruntime,
        python=row.python,
        tritonclient=row.tritonclient,
        tested_by=before.tested_by if row.release == before.release else _UNTESTED,
    )


def _rewritten(text: str, wanted: ImagePin) -> str:
    """The same text with the values of [image] replaced, comments and order kept."""
    document = tomlkit.parse(text)
    for field, value in asdict(wanted).items():
        document["image"][field] = value
    return tomlkit.dumps(document)


def _with_arguments(text: str, wanted: ImagePin, dockerfile: Path) -> str:
    """The same Dockerfile with other defaults of its build arguments."""
    for name, field in _ARGUMENTS.items():
        line = f"ARG {name}={getattr(wanted, field)}"
        text, count = re.subn(rf"^ARG {name}=.*$", line, text, flags=re.MULTILINE)
        if count != 1:
            raise Failure(
                f"{dockerfile} must have one line 'ARG {name}=...', got {count}; take the file of "
                "this kit's release"
            )
    return text


def _write_all(changed: Mapping[Path, str]) -> None:
    """Replace each file in one step; where one cannot be, those before it are put back."""
    with ExitStack() as back:
        for path, text in changed.items():
            old = path.read_text("utf-8")
            _write(path, text)
            back.callback(_write, path, old)
        back.pop_all()


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text, mode=path.stat().st_mode & 0o777, durable=True)
    except OSError as error:
        raise Failure(
            f"{path} cannot be written ({error.strerror}), and the pin stays; move it in a "
            "checkout that is yours and install the kit from there"
        ) from error
