"""What `tune` turns, a row each, and one value of each of them: a setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from preprocess.settings import PreprocessSettings, read_settings
from transformer_serving.contract.manifest import TORCH
from transformer_serving.desk.builders.call_sizes import DOUBLING
from transformer_serving.desk.bundle.writer import BundleContent
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.proof.greedy_set import GreedySet
from transformer_serving.gateway.settings import WORKERS

Value = str | int
PRECISION = "precision"
THREADS = "intra_op_thread_count"
CALLS = "TRANSFORMER_SERVING_CALLS_IN_FLIGHT"
_MOST = 1 << 20
NOT_GENERATION = "text-generation has none of the settings that are tuned here"


def _halved(lengths: Sequence[int]) -> tuple[int, ...]:
    """Every second, the longest included."""
    return tuple(lengths[::-1][::2][::-1])


def _doubling(lengths: Sequence[int]) -> tuple[int, ...]:
    """Of a ladder of doublings, for each step the shortest length that holds it."""
    found = {next((size for size in lengths if size >= step), lengths[-1]) for step in DOUBLING}
    return tuple(sorted({*found, lengths[-1]}))


# No finer ones than the bundle was converted with: a length without rows in its parity set could
# not be proven where it is served.
LADDERS: Mapping[str, Callable[[Sequence[int]], tuple[int, ...]]] = {
    "converted": tuple,
    "halved": _halved,
    "doubling": _doubling,
}


# The variables of a Setting's gateway.
GATEWAY_NAMES = (CALLS, WORKERS.name)


@dataclass(frozen=True)
class Setting:
    """A value of each knob. `threads` 0 is the instance's share of the cores, `call_tokens` 0 no
    limit but the texts of a call."""

    precision: str
    threads: int
    buckets: str
    call_tokens: int
    calls: int
    instances: int
    workers: int

    @property
    def bundle(self) -> tuple[Value, ...]:
        """What another bundle is needed for."""
        return (self.precision, self.threads, self.buckets, self.call_tokens, self.instances)

    @property
    def gateway(self) -> dict[str, str]:
        """What another gateway is needed for: its environment variables."""
        return dict(zip(GATEWAY_NAMES, (str(self.calls), str(self.workers)), strict=True))

    def value(self, knob: str) -> Value:
        found: Value = asdict(self)[knob]
        return found

    def turned(self, knob: str, value: Value) -> Setting:
        return replace(self, **{knob: value})  # type: ignore[arg-type]

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True)
class Scope:
    """What there is to choose among: bundles by precision, cores of this machine."""

    bundles: Mapping[str, BundleContent]
    cores: int

    def content(self, setting: Setting) -> BundleContent:
        return self.bundles[setting.precision]


@dataclass(frozen=True)
class Knob:
    """`values` are those worth trying beside the present one; `choices` what it may be at all,
    where it is no number of at least `least`. `turn` is how one is tried, where another knob must
    go with it."""

    name: str
    help: str
    values: Callable[[Scope, Setting], Sequence[Value]]
    choices: Callable[[Scope], Sequence[str]] | None = None
    least: int = 1
    turn: Callable[[Setting, Value], Setting] | None = None

    def read(self, text: str, scope: Scope) -> Value:
        """Raises Failure (exit code 2) naming the knob and what it takes."""
        if self.choices is not None:
            known = self.choices(scope)
            if text in known:
                return text
            raise Failure(f"{self.name} must be one of {', '.join(known)}", exit_code=2)
        if re.fullmatch("[0-9]{1,7}", text) and self.least <= int(text) <= _MOST:
            return int(text)
        raise Failure(
            f"{self.name} must be a whole number from {self.least} to {_MOST}", exit_code=2
        )

    def rivals(self, scope: Scope, present: Setting) -> tuple[Setting, ...]:
        """The settings that are raced, the present one first, alone where there is no other."""
        values = dict.fromkeys((present.value(self.name), *self.values(scope, present)))
        turn = self.turn or (lambda setting, value: setting.turned(self.name, value))
        return tuple(turn(present, value) for value in values)


def _on_cores(scope: Scope, present: Setting) -> bool:
    """Whether the engine computes on this machine's cores, in calls of any shape."""
    return scope.content(present).engine.engine in ("openvino", "onnxruntime", TORCH)


def _threads(scope: Scope, present: Setting) -> Sequence[Value]:
    if not _on_cores(scope, present):
        return ()
    return (0, *sorted({1, max(1, scope.cores // 2)}))


def _ladders(scope: Scope, present: Setting) -> Sequence[Value]:
    """Those that differ; a TensorRT plan has a profile for each of its lengths."""
    if not _on_cores(scope, present):
        return ()
    lengths = scope.content(present).endpoint.tokens.buckets
    own = LADDERS[present.buckets](lengths)
    seen = {own: present.buckets}
    for name, ladder in LADDERS.items():
        seen.setdefault(ladder(lengths), name)
    return tuple(seen.values())


def _up_to_cores(most: int) -> Callable[[Scope, Setting], Sequence[Value]]:
    def values(scope: Scope, present: Setting) -> Sequence[Value]:
        return tuple(count for count in (1, 2, 4, 8) if count <= min(most, scope.cores))

    return values


def _share_calls(setting: Setting, workers: Value) -> Setting:
    """Calls in flight are a worker's own: of all workers together they stay as many, for the engine
    is the same."""
    calls = max(1, round(setting.calls * setting.workers / int(workers)))
    return replace(setting, workers=int(workers), calls=calls)


# In the order in which they are raced: what decides most, and what others depend on, first.
KNOBS = (
    Knob(PRECISION, "which of the bundles given",
         lambda scope, _: tuple(scope.bundles), lambda scope: tuple(scope.bundles)),
    Knob("threads", "that one call computes with; 0: the instance's share of the cores", _threads,
         least=0),
    Knob("buckets", "lengths that texts are padded to, of those converted",
         _ladders, lambda _: tuple(LADDERS)),
    Knob("call_tokens", "that one call has at most, padding included; 0: no limit",
         lambda scope, _: (256, 1024, 4096), least=0),
    Knob("calls", "calls in flight of one worker", lambda scope, _: (1, 2, 4)),
    Knob("instances", "copies of the engine", _up_to_cores(4)),
    Knob("workers", "processes of the gateway, which share the calls in flight",
         _up_to_cores(8), turn=_share_calls),
)  # fmt: skip
BY_NAME = {knob.name: knob for knob in KNOBS}


def knobs_named(names: Sequence[str]) -> tuple[Knob, ...]:
    """Those, in the order of the table; all of them where none is named. Raises Failure (2)."""
    if unknown := set(names) - set(BY_NAME):
        raise Failure(
            f"there is no knob '{min(unknown)}'; there are {', '.join(BY_NAME)}", exit_code=2
        )
    return tuple(knob for knob in KNOBS if not names or knob.name in names)


def setting_of(precision: str, scope: Scope, environment: Mapping[str, str]) -> Setting:
    """As a bundle is written, behind a gateway with this environment. Raises Failure."""
    content = scope.bundles[precision]
    try:
        gateway: PreprocessSettings = read_settings(environment)
        return Setting(
            precision,
            int(content.engine.parameters.get(THREADS) or 0),
            "converted",
            content.endpoint.limits.max_call_tokens or 0,
            gateway.calls_in_flight,
            content.engine.instances,
            int(WORKERS.number(environment)),
        )
    except ValueError as error:
        raise Failure(str(error), exit_code=2) from None


def with_values(text: str, setting: Setting, scope: Scope) -> Setting:
    """The setting with `knob=value,knob=value`. Raises Failure (exit code 2)."""
    for knob, value in _named_values(text):
        setting = setting.turned(knob.name, knob.read(value, scope))
    return setting


def check_values(text: str) -> None:
    """What can be said of `knob=value,knob=value` before there is a bundle, whose precisions are
    known then. Raises Failure (exit code 2)."""
    for knob, value in _named_values(text):
        if knob.name != PRECISION:
            knob.read(value, Scope({}, 1))


def _named_values(text: str) -> Iterator[tuple[Knob, str]]:
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        knob = BY_NAME.get(name.strip())
        if knob is None or not equals:
            raise Failure(
                f"what is turned must be knob=value with commas between, of {', '.join(BY_NAME)}",
                exit_code=2,
            )
        yield knob, value.strip()


def content_at(content: BundleContent, setting: Setting) -> BundleContent:
    """The bundle's content as the setting has it. Raises Failure (exit code 2) for a language
    model's, which has none of these settings."""
    proof = content.parity_set
    if isinstance(proof, GreedySet):
        raise Failure(
            "tune is for tasks whose answers are one call; not for text-generation", exit_code=2
        )
    ladder = LADDERS[setting.buckets](content.endpoint.tokens.buckets)
    call_tokens = setting.call_tokens or None
    own = {name: text for name, text in content.engine.parameters.items() if name != THREADS}
    threads = {THREADS: str(setting.threads)} if setting.threads else {}
    return replace(
        content,
        endpoint=replace(
            content.endpoint,
            tokens=replace(content.endpoint.tokens, buckets=ladder),
            limits=replace(content.endpoint.limits, max_call_tokens=call_tokens),
        ),
        engine=replace(content.engine, parameters=own | threads, instances=setting.instances),
        parity_set=proof and replace(proof, buckets=ladder, max_call_tokens=call_tokens),
    )
