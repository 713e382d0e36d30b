"""Calls that stand for real requests: int8 takes its ranges from them, fp16 its overflows.

Tested by tests/builders/test_precisions.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.errors import ServingError
from transformer_serving.desk.failure import ConversionRefused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transformer_serving.contract.endpoint import Endpoint

    # One call of the graph with one text: its inputs by name.
    Feed = Mapping[str, NDArray[np.generic]]
    Feeds = Sequence[Feed]

# More texts change the ranges little, and each one costs a run of the model in fp32.
MOST = 300


def read_bodies(path: Path) -> tuple[dict[str, Any], ...]:
    """Request bodies of a file: each line is a text or, in braces, a body as JSON.

    At most MOST, spread evenly over a longer file. Raises ConversionRefused when the file cannot
    be read, holds none, or a line in braces is no JSON.
    """
    try:
        # Others that splitlines takes for an end of a line may stand in a text.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConversionRefused(
            f"--calibration: '{path}' cannot be read as UTF-8 text ({type(error).__name__})"
        ) from error
    filled = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise ConversionRefused(f"--calibration: '{path}' has no text; write one a line")
    step = -(-len(filled) // MOST)
    return tuple(_body(path, number, line) for number, line in filled[::step])


def _body(path: Path, number: int, line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {"text": line}
    try:
        body = json.loads(line)
    except ValueError as error:
        raise ConversionRefused(
            f"--calibration: line {number} of '{path}' starts as JSON and is none"
        ) from error
    return dict(body)


def feeds_of(
    endpoint: Endpoint, tokenizer_json: bytes, bodies: Iterable[Mapping[str, Any]]
) -> list[Feed]:
    """The calls that preprocess makes of `bodies`, each text alone, padded to its bucket.

    Texts longer than the endpoint takes are cut. Raises ConversionRefused for a body that the
    endpoint would refuse.
    """
    from preprocess.rows import pad
    from transformer_serving.desk.builders.sample_rows import encoded_bodies

    try:
        encoded = encoded_bodies(endpoint, tokenizer_json, bodies)
    except ServingError as error:
        raise ConversionRefused(
            f"a calibration body is none that this task answers: {error.message}"
        ) from error
    feeds: list[Feed] = []
    for text in encoded:
        length = next(size for size in endpoint.tokens.buckets if size >= len(text.ids))
        tensors = pad([text], length, endpoint.inputs, endpoint.tokens)
        feeds.append({tensor.name: tensor.array for tensor in tensors})
    return feeds
