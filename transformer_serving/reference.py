"""The reference: what transformers and sentence-transformers themselves answer, in float32.

Torch is loaded here and in onnx_export only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformer_serving.model_source import ModelSource
from transformer_serving.onnx_export import quiet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.float64]

# The names that a manifest and messages give to the references.
REFERENCES = {
    "text-classification": "transformers.pipeline",
    "sentence-embedding": "sentence-transformers",
}


def reference_answers(source: ModelSource, texts: Sequence[str], max_length: int) -> Rows:
    """Scores [texts, labels] or vectors [texts, width], each text computed alone, unpadded."""
    with quiet():
        return _ANSWERS[source.task](source, texts, max_length)


def _scores(source: ModelSource, texts: Sequence[str], max_length: int) -> Rows:
    import numpy as np
    import torch
    from transformers import pipeline

    classify: Any = pipeline(
        "text-classification", model=str(source.folder), device="cpu", dtype=torch.float32
    )
    answers = classify(
        list(texts), top_k=None, batch_size=1, truncation=True, max_length=max_length
    )
    by_label = [{row["label"]: row["score"] for row in answer} for answer in answers]
    return np.array([[row[label] for label in source.labels] for row in by_label], np.float64)


def _vectors(source: ModelSource, texts: Sequence[str], max_length: int) -> Rows:
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(source.folder), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    model.max_seq_length = max_length
    vectors = model.encode(list(texts), batch_size=1, show_progress_bar=False)
    return np.array(vectors, np.float64)


_ANSWERS: dict[str, Callable[[ModelSource, Sequence[str], int], Rows]] = {
    "text-classification": _scores,
    "sentence-embedding": _vectors,
}
