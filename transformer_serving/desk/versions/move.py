"""Moving the image pin to another release: only to a row with evidence, and saying what follows.

Tested by tests/test_versions.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.versions.lock import LOCK_FILE, ImagePin, parse_lock
from transformer_serving.desk.versions.matrix import UNKNOWN, Release, find_release

# A plan works with exactly one TensorRT, and Triton's version decides which backends there are.
EVIDENCED = ("triton", "tensorrt")
# What may not stay unknown either, though it may come from another image of the month.
KNOWN = ("cuda", "driver_min", "onnxruntime", "python")
_UNTESTED = "nothing yet: the pin was moved here and no test has run the image"

# A field of the pin, and what has to be done again when it changes.
_REBUILD = {
    "tensorrt": "every bundle with engine tensorrt: convert it again, on each kind of GPU",
    "image": "the Triton image: docker compose -f compose/compose.yaml build --pull",
    "onnxruntime": "bundles with engine onnxruntime: deploy them again, which compares opsets",
    "python": "the lock of what runs inside the image: make lock, with its Python",
    "driver_min": "the hosts' NVIDIA drivers: transformer-serving doctor",
    "tritonclient": "the inference images: the client is pinned with the server",
}


@dataclass(frozen=True)
class Move:
    """What `versions use` did: the pin before and after, and what must be rebuilt for it."""

    before: ImagePin
    after: ImagePin
    rebuild: tuple[str, ...]


def use(release: str, path: Path = LOCK_FILE) -> Move:
    """Move the image pin in versions.toml. Raises Failure for a row without evidence (2)."""
    row = find_release(release)
    check_evidence(row)
    text = path.read_text("utf-8")
    before = parse_lock(text).image
    after = _pin(row, before)
    if after.release != before.release:
        _write(path, _rewritten(text, after))
    return Move(before, after, rebuilds(before, after))


def check_evidence(row: Release) -> None:
    """Raises Failure (exit code 2) with the command that would establish what is missing."""
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


def _lack(row: Release, cell: str) -> str:
    value = getattr(row, cell)
    if value == UNKNOWN:
        return f"{cell} is unknown"
    return f"{cell} {value} has no direct evidence ({row.evidence(cell)})"


def rebuilds(before: ImagePin, after: ImagePin) -> tuple[str, ...]:
    """What has to be built again after a move."""
    return tuple(
        text for field, text in _REBUILD.items() if getattr(before, field) != getattr(after, field)
    )


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


def _write(path: Path, text: str) -> None:
    """Replace the file in one step; through the link, so that the link stays one."""
    target = path.resolve()
    try:
        replace_file(target, text, mode=target.stat().st_mode & 0o777, durable=True)
    except OSError as error:
        raise Failure(
            f"{target} cannot be written ({error.strerror}); move the pin in a checkout and "
            "install the kit from there"
        ) from error
