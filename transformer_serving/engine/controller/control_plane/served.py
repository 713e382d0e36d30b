"""What the controller asks of the control plane; the ClearML SDK is one answer to it.

Tested by tests/engine/test_late_control_plane.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.endpoint_config import EndpointFields


@dataclass(frozen=True)
class Served:
    """One triton endpoint of the serving task.

    `endpoint` is its address with the version, `model` its Triton name. `fingerprint` changes
    with anything that matters for serving it, `content` with the model's bytes: '' where the
    registry has no such model.
    """

    endpoint: str
    model: str
    model_id: str
    preprocess: str | None
    framework: str
    fields: EndpointFields
    fingerprint: str
    content: str


@dataclass(frozen=True)
class Problem:
    """An endpoint that cannot be taken up at all, and why.

    `replaced_by`: the model whose upload replaced the bytes of this one's, '' where none did.
    `beside`: it is told beside an endpoint, which is there and has a state of its own.
    """

    endpoint: str
    model: str
    model_id: str
    reason: str
    replaced_by: str = ""
    beside: bool = False


class ControlPlane(Protocol):
    """Every call may take long or raise; none is made from the controller's main thread."""

    def endpoints(self) -> Sequence[Served]:
        """All triton endpoints now."""
        ...

    def problems(self) -> Sequence[Problem]:
        """What the last `endpoints` found that is no endpoint, but should be known."""
        ...

    def model(self, served: Served) -> AbstractContextManager[LocalCopy]:
        """A fresh copy of the model's file or folder; gone afterwards."""
        ...

    def preprocess(self, served: Served) -> bytes | None:
        """The endpoint's preprocess file as it is; None without one, or for a folder."""
        ...

    def report(self, text: str) -> None:
        """Show a line of the controller's own log to the users of the serving task."""
        ...

    def report_figures(self, metrics: str) -> None:
        """Report Triton's figures, in the Prometheus text form."""
        ...

    def configuration(self, *, fresh: bool = False) -> Mapping[str, str]:
        """The items of the serving task's configuration, as read last or `fresh`."""
        ...

    def section(self, name: str) -> Mapping[str, Any]:
        """An item of clearml-serving's own, as `configuration` read it last."""
        ...

    def configure(self, items: Mapping[str, str | Mapping[str, Any]]) -> None:
        """Change these items together, and no others."""
        ...

    def of_instances(self, name: str) -> Mapping[str, str]:
        """That item of each worker's own task, by the task's id."""
        ...

    def tag_model(self, model: str, tag: str) -> bool:
        """Give a model of the registry one more tag; whether it has it now."""
        ...

    def close(self) -> None:
        """Say good-bye, as far as that is possible at once."""
        ...
