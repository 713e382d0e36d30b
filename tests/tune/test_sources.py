"""Which bundles may be chosen among."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.sources import by_precision, content, copied


def test_bundles_of_one_model_are_named_by_what_differs(small: Bundle, tmp_path: Path) -> None:
    assert by_precision([small]) == {"fp32": small}
    other = write_small(tmp_path / "other", Parts(engine="openvino"))
    assert by_precision([small, other]) == {"onnxruntime-fp32": small, "openvino-fp32": other}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (Parts(scale=2.0), "2 are fp32"),
        (Parts(engine="openvino", labels=("a", "b", "c")), "another model"),
        (Parts(engine="openvino", rotated=1), "another model"),
    ],
)
def test_other_models_and_twins_are_refused(
    small: Bundle, tmp_path: Path, parts: Parts, said: str
) -> None:
    with pytest.raises(Failure, match=said):
        by_precision([small, write_small(tmp_path / "other", parts)])


def test_what_is_tuned_is_a_copy(small: Bundle, tmp_path: Path) -> None:
    (copy,) = copied([small.folder], tmp_path / "copies")
    file = copy.model_folder / "model.onnx"
    assert not file.samefile(small.model_folder / "model.onnx")
    assert content(copy).endpoint == small.endpoint
    assert open_bundle(small.folder).manifest == copy.manifest
    with pytest.raises(Failure, match="no bundle"):
        copied([tmp_path], tmp_path / "more")
