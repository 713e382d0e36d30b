"""What a builder is given and what it makes.

Tested by tests/builders/test_table.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.calibration import Feeds

    # From the tensors of one call to the engine's outputs in the graph's order.
    Call = Callable[[Sequence[Tensor]], list[NDArray[np.generic]]]


@dataclass(frozen=True)
class EngineFiles:
    """What an engine loads: `files` all lie in one folder, `files[0]` is the one to open.

    `facts` are a TensorRT plan's, for the manifest; None for other engines. `parameters` go into
    Triton's configuration beside the precision, `instances` is how many copies of the engine it
    runs. `outputs` names those that a call gives, in their order; none names all of the graph's.
    """

    engine: str
    precision: str
    files: tuple[Path, ...]
    facts: Mapping[str, Any] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    instances: int = 1
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shapes:
    """The calls an engine is built for: token lengths, the texts of a call, and sample rows.

    `lengths` rise; `batch` is the fewest, the usual and the most texts of one call.
    """

    lengths: tuple[int, ...]
    batch: tuple[int, int, int]
    feeds: Feeds = field(repr=False, default=())


# For engines that take any shape and for precisions that need no sample rows.
ANY_SHAPES = Shapes(lengths=(), batch=(1, 1, 1))


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """A second name of the same bytes, where the file system has that; shutil's copy_function."""
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    return str(target)
