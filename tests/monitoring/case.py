"""What one alert is shown, and whether it must fire at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.times import MINUTE

P = "transformer_serving_"
Series = tuple[str, float, float]
# A short window has five steps.
LAST_STEPS = 8
ENDPOINT = {"endpoint": "texts"}
GATEWAY, TRITON = {"instance": "10.0.0.7:8080"}, {"instance": "10.0.0.9:8003"}
PROOF = {**ENDPOINT, "bundle": "7", **TRITON}
MODEL = {"model": "texts", "version": "7", **TRITON}
WORKERS = [
    (
        f'{P}gateway_golden_round_timestamp_seconds{{instance="10.0.0.7:8080",pid="{pid}"}}',
        0.0,
        60.0,
    )
    for pid in (11, 12)
]


@dataclass(frozen=True)
class Case:
    """Series as (name and labels, first value, growth in each step of `step_s`).

    `fires` are the labels of the result with which the alert fires at the end, None where it is
    silent, also while the series are young.
    """

    alert: Alert
    name: str
    series: Sequence[Series]
    fires: dict[str, str] | None
    step_s: float = MINUTE
    # How much each grows in its last steps, where that is something else.
    then: Sequence[float] = ()
    # What each is in its last steps, where that is something else than before.
    turns: Sequence[float] = ()
    last_steps: int = LAST_STEPS
    # The value with which it fires, where the summary has it.
    value: float = 0.0

    @property
    def at_s(self) -> float:
        """A little after the alert must have fired."""
        return self.alert.pace.window_s + self.alert.pace.hold_s + 3 * self.step_s

    @property
    def looks_s(self) -> tuple[float, ...]:
        """When it is looked at: what is silent all the time, also as soon as it could have fired.

        The series are shorter than the window then, as those of a container that has just started.
        """
        soon = self.alert.pace.hold_s + 2 * self.step_s
        changes = self.fires is not None or self.then or self.turns
        return (self.at_s,) if changes else (soon, self.at_s)

    def values(self) -> list[tuple[str, str]]:
        """Each series as promtool takes it."""
        steps = round(self.at_s / self.step_s) + 1
        first = steps - self.last_steps if self.then or self.turns else steps
        rows = []
        for at, (name, value, step) in enumerate(self.series):
            text = f"{value:g}+{step:.10g}x{first}"
            if self.then:
                after = self.then[at]
                text += f" {value + first * step + after:.10g}+{after:.10g}x{self.last_steps - 1}"
            if self.turns:
                text += f" {self.turns[at]:g}x{self.last_steps - 1}"
            rows.append((name, text))
        return rows


def gauge(name: str, value: float, /, **labels: str) -> Series:
    return series_of(name, labels), value, 0.0


def rising(name: str, step: float, /, **labels: str) -> Series:
    return series_of(name, labels), 0.0, step


def series_of(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}}" if name == "up" else f"{P}{name}{{{inside}}}"
