"""The parity set of an engine that was brought: what the file itself answers at the desk.

There is no reference to ask, so nothing says that the answers are right. That they are the same
where the file is served, and at every shape, is what the set proves.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.sample_rows import encoded_bodies, kept_lengths, rows_of
from transformer_serving.desk.own_engine.engine import open_own_engine
from transformer_serving.desk.parity.bodies import parity_bodies
from transformer_serving.desk.parity.check import TOLERANCES, texts_of
from transformer_serving.desk.parity.latency import processor
from transformer_serving.desk.parity.shapes import Call, ShapeCase, shape_case, unpadded
from transformer_serving.engine.proof.parity_set import ParitySet


@dataclass(frozen=True)
class OwnProof:
    """`facts` go into the manifest; no `parity_set` where the desk cannot run the file."""

    parity_set: ParitySet | None
    facts: Mapping[str, Any] = field(default_factory=dict)


def own_proof(
    endpoint: Endpoint, tokenizer_json: bytes, files: EngineFiles, body: Mapping[str, Any]
) -> OwnProof:
    """The set of an engine that runs on a CPU, with the strictest tolerance that it keeps here.

    Nobody knows how the file was made: its precision is only what its owner says.
    """
    if files.engine == "tensorrt":
        return OwnProof(None, {"unproven": "a plan cannot be run at the desk"})
    call = open_own_engine(files)
    case = _case(endpoint, tokenizer_json, call, body)
    fault = None
    names = list(TOLERANCES)
    # Another processor or ONNX Runtime rounds otherwise: fp32's own tolerance is too narrow.
    strictest = max(names.index(files.precision), names.index("fp16"))
    for name in names[strictest:]:
        tolerance = TOLERANCES[name].of_shapes
        report = case.prove(call, files.precision, tolerance)
        if report.fault is None:
            return OwnProof(case.kept(files.precision, tolerance), {"shapes": asdict(report)})
        fault = fault or report.fault
    return OwnProof(None, {"unproven": f"the file does not answer alike at every shape: {fault}"})


def _case(
    endpoint: Endpoint, tokenizer_json: bytes, call: Call, body: Mapping[str, Any]
) -> ShapeCase:
    texts = texts_of(tokenizer_json, endpoint.tokens)
    sources: list[Encoded] = []
    for one in (body, *parity_bodies(endpoint, texts)):
        # A brought endpoint may refuse what others of its task take.
        try:
            sources += encoded_bodies(endpoint, tokenizer_json, [one])
        except ServingError:
            continue
    rows = rows_of(endpoint.masks, sources, kept_lengths(endpoint.tokens.buckets))
    answers = [[output[0] for output in call(unpadded(endpoint, row))] for row in rows]
    name = f"the file itself, on {processor()}"
    return shape_case(endpoint, rows, answers, name, head_size=None)
