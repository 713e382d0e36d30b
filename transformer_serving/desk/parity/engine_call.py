"""An engine that was built here, asked; what it says where it cannot be is a refusal.

Tested by tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.error_line import named_line
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.failure import Failure, PrecisionRefused
from transformer_serving.desk.interruption import reraise_interruption

if TYPE_CHECKING:
    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.files import Call


def opened_or_refused(files: EngineFiles, open_engine: Callable[[EngineFiles], Call]) -> Call:
    """The engine, which raises PrecisionRefused where it does not load or run here.

    An engine's errors have types of its own, or none.
    """

    what = f"engine {files.engine} does not run in {files.precision} here"

    def call(tensors: Sequence[Tensor]) -> Any:
        with precision_refused(what):
            return engine_call(tensors)

    with precision_refused(what):
        engine_call = open_engine(files)
    return call


@contextmanager
def precision_refused(
    what: str, passed: tuple[type[Exception], ...] = (Failure,)
) -> Iterator[None]:
    """Raises PrecisionRefused that says `what`, for whatever the block raises but what is passed
    on.
    """
    try:
        yield
    except passed:
        raise
    except Exception as error:
        reraise_interruption(error)
        raise PrecisionRefused(
            f"{what} ({named_line(error)}); name another --precision or --engine"
        ) from error
