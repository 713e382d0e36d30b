"""The fields of a task's body: how its texts are named, and what may stand beside them.

Tested by tests/preprocess/test_request.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

_COMMON = ("parameters", "timeout_ms", "truncate")


@dataclass(frozen=True)
class TextField:
    """A field of texts: one string, a list of them, or either."""

    name: str
    one: bool = True
    many: bool = True
    required: bool = True

    @property
    def wanted(self) -> str:
        forms = ("a string",) * self.one + ("a list of strings",) * self.many
        return " or ".join(forms)


@dataclass(frozen=True)
class BodyForm:
    """The fields of a task's body.

    `second` holds as many texts as `first`, or one for all of them where `shares_second`; where
    `first` takes no list, any number. `beside` names the parameters that may also stand in the
    body itself. The Inference API's `inputs` holds the first field's texts or, where there is a
    second, an object of both.
    """

    first: TextField
    second: TextField | None = None
    shares_second: bool = False
    beside: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (self.first.name,) + ((self.second.name,) if self.second else ())

    @cached_property
    def own(self) -> tuple[str, ...]:
        """Every field that a body of the task's own form may have."""
        return (*self.names, *self.beside, *_COMMON)

    @cached_property
    def telling(self) -> tuple[str, ...]:
        """The fields by which an object is known as a body of this form or the Inference API's."""
        return (*self.names, *self.beside, "inputs")

    @cached_property
    def inference_api(self) -> tuple[str, ...]:
        return ("inputs", *self.beside, *_COMMON)

    @cached_property
    def is_one_text(self) -> bool:
        """Whether a text alone makes a body."""
        return self.first.one and not (self.second and self.second.required)
