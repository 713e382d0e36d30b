"""One step of `make check-processors`, in a process of its own: oneDNN reads its limit at a start.

`prepare` exports the model and asks the reference, `build` makes and measures bundles, `serve`
proves bundles through a Triton, as the controller does. Each prints one JSON list.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scripts.proof_cost import running, version_of
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.manifest import Golden
from transformer_serving.desk.builders.calibration import feeds_of
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.builders.table import ENGINES, build_engine, ladder_of, open_engine
from transformer_serving.desk.bundle.writer import BundleContent, write_bundle
from transformer_serving.desk.demo import encoder_folder
from transformer_serving.desk.export.cleaning import clean_onnx
from transformer_serving.desk.export.endpoint_json import LIMITS, endpoint_of, tokens_of
from transformer_serving.desk.export.onnx import export_onnx
from transformer_serving.desk.parity.bodies import golden_body, parity_bodies
from transformer_serving.desk.parity.check import (
    TOLERANCES,
    Case,
    compare,
    prepare_case,
    texts_of,
    within,
)
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.source.model import open_source
from transformer_serving.desk.source.tokenizer import TokenizerFile
from transformer_serving.engine.controller.proving.machine import read_machine
from transformer_serving.engine.controller.proving.proofs import Proofs
from transformer_serving.engine.controller.proving.prover import ProofFailed, Prover
from transformer_serving.engine.controller.triton.server import TritonAway

_PREPARED = "prepared.pickle"
# A Triton that is short of processor time may not answer in time; the controller tries again too.
_TRIES = 3


@dataclass(frozen=True)
class Prepared:
    """What every engine is made of and measured by; written and read by this program alone."""

    endpoint: Endpoint
    tokenizer: TokenizerFile
    case: Case
    feeds: Sequence[Any]


def prepare(folder: Path, max_length: int) -> list[Any]:
    source = open_source(str(encoder_folder()), task="sentence-embedding")
    graph = export_onnx(source, folder / "graph.onnx")
    clean_onnx(graph.path)
    tokens = tokens_of(source, max_length, ladder_of("openvino"))
    limits = replace(LIMITS, max_call_tokens=ENGINES["openvino"].call_tokens)
    endpoint = endpoint_of(source, graph, tokens, limits)
    endpoint = replace(endpoint, golden=golden_body(endpoint))
    case = prepare_case(source, endpoint)
    # int8 is calibrated as convert does it, by texts of all lengths, however few are asked here.
    whole = replace(endpoint, tokens=tokens_of(source, None, ladder_of("openvino")))
    texts = texts_of(source.tokenizer.content, whole.tokens)
    feeds = feeds_of(whole, source.tokenizer.content, parity_bodies(whole, texts))
    prepared = Prepared(endpoint, source.tokenizer, case, feeds)
    (folder / _PREPARED).write_bytes(pickle.dumps(prepared))
    return []


def load_prepared(folder: Path) -> Prepared:
    """What `prepare` wrote there."""
    prepared: Prepared = pickle.loads((folder / _PREPARED).read_bytes())
    return prepared


def build(folder: Path, place: Path, engines: list[str]) -> list[Any]:
    """Bundles `place`/ENGINE-PRECISION; a row for each of `engines`, such as 'openvino-int8'."""
    prepared = load_prepared(folder)
    tokens = prepared.endpoint.tokens
    shapes = Shapes(tokens.buckets, (1, 8, LIMITS.max_batch_size), prepared.feeds)
    rows = []
    for name in engines:
        engine, precision = name.split("-")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            files = build_engine(engine, precision, folder / "graph.onnx", Path(scratch), shapes)
            report = compare(prepared.case, files)
            rows.append(
                {
                    "engine": name,
                    "difference": max(
                        report.largest_difference,
                        report.shapes.largest_difference if report.shapes else 0.0,
                    ),
                    "fault": None if within(report) else _fault(report),
                }
            )
            write_bundle(_content(prepared, files, asdict(report)), place / name)
    return rows


def _fault(report: Any) -> str:
    shapes = report.shapes.fault if report.shapes else None
    return shapes or "requests are over the tolerance"


def _content(prepared: Prepared, files: EngineFiles, parity: dict[str, Any]) -> BundleContent:
    """As convert has it; also of an engine that convert would refuse, to see it refused later."""
    endpoint, precision = prepared.endpoint, files.precision
    local = LocalEndpoint(endpoint, prepared.tokenizer.content, open_engine(files))
    tolerance = TOLERANCES[precision]
    assert endpoint.golden is not None
    return BundleContent(
        endpoint=endpoint,
        tokenizer=prepared.tokenizer,
        engine=files,
        golden=Golden(endpoint.golden, local.answer(endpoint.golden), tolerance.difference),
        parity=parity,
        source={"model": encoder_folder().name},
        parity_set=prepared.case.shapes.kept(precision, tolerance.of_shapes),
    )


def serve(bundles: list[Path]) -> list[Any]:
    """Every bundle proven by one Triton, which has this process's environment."""
    logging.disable(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(Path(scratch)) as (triton, repository, _),
    ):
        prover = Prover(triton, repository, Proofs(Path(scratch) / "proofs.json"))
        prover.on(read_machine(triton.version(), repository.root))
        return [_served(prover, repository, at, bundle) for at, bundle in enumerate(bundles)]


def _served(prover: Prover, repository: Any, at: int, bundle: Path) -> dict[str, Any]:
    token = repository.stage("m", bundle / "model", "")
    version = version_of(repository, token, at + 2)
    row: dict[str, Any] = {"bundle": str(bundle), "difference": None, "fault": None}
    for left in reversed(range(_TRIES)):
        try:
            prover.require("m", version)
            break
        except ProofFailed as failure:
            return {**row, "fault": str(failure)}
        except TritonAway:
            if not left:
                raise
    passed = prover.passed(version)
    assert passed is not None
    return {**row, "difference": passed.largest_difference}


def main() -> None:
    step, *arguments = sys.argv[1:]
    # Tools and Triton print to stdout as they work; the answer stands alone there.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if step == "prepare":
        rows = prepare(Path(arguments[0]), int(arguments[1]))
    elif step == "build":
        rows = build(Path(arguments[0]), Path(arguments[1]), arguments[2:])
    else:
        rows = serve([Path(name) for name in arguments])
    with answer:
        answer.write(json.dumps(rows))


if __name__ == "__main__":
    main()
