"""What `tune` turns, a row each, and one value of each of them: a setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from preprocess.settings import PreprocessSettings, read_settings
from transformer_serving.contract.manifest import TORCH
from transformer_serving.contract.settings.preprocess import CALLS_IN_FLIGHT
from transformer_serving.contract.settings.setting import Setting as Declared
from transformer_serving.desk.builders.call_sizes import DOUBLING
from transformer_serving.desk.bundle.writer import BundleContent
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.proof.greedy_set import GreedySet
from transformer_serving.gateway.settings import WORKERS

Value = str | int
PRECISION = "precision"
THREADS = "intra_op_thread_count"
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
GATEWAY_NAMES = (CALLS_IN_FLIGHT.name, WORKERS.name)


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
    """What there is to choose among: bundles by precision, cores of this machine. `gpu` says that
    it has one, which an engine that can computes on."""

    bundles: Mapping[str, BundleContent]
    cores: int
    gpu: bool = False

    def content(self, setting: Setting) -> BundleContent:
        return self.bundles[setting.precision]


@dataclass(frozen=True)
class Knob:
    """`values` are those worth trying beside the present one; `choices` what it may be at all,
    where it is no number of at least `least`. `turn` is how one is tried, where another knob must
    go with it. `wide` keeps the largest value that is not surely worse than another, and not the
    best one: for the races that follow. `setting` has the bounds of a number that is a variable.
    """

    name: str
    help: str
    values: Callable[[Scope, Setting], Sequence[Value]]
    choices: Callable[[Scope], Sequence[str]] | None = None
    least: int = 1
    turn: Callable[[Setting, Value], Setting] | None = None
    wide: bool = False
    setting: Declared | None = None

    def read(self, text: str, scope: Scope) -> Value:
        """Raises Failure (exit code 2) naming the knob and what it takes."""
        if self.choices is not None:
            known = self.choices(scope)
            if text in known:
                return text
            raise Failure(f"{self.name} must be one of {', '.join(known)}", exit_code=2)
        row = self.setting
        least, most = (self.least, _MOST) if row is None else (int(row.low), int(row.high))
        if re.fullmatch("[0-9]{1,7}", text) and least <= int(text) <= most:
            return int(text)
        raise Failure(f"{self.name} must be a whole number from {least} to {most}", exit_code=2)

    def rivals(self, scope: Scope, present: Setting) -> tuple[Setting, ...]:
        """The settings that are raced, the present one first, alone where there is no other."""
        values = dict.fromkeys((present.value(self.name), *self.values(scope, present)))
        return tuple(self.at(present, value) for value in values)

    def at(self, setting: Setting, value: Value) -> Setting:
        """The setting with that value, and what must go with it."""
        return self.turn(setting, value) if self.turn else setting.turned(self.name, value)


def _on_cores(scope: Scope, present: Setting) -> bool:
    """Whether the engine computes on this machine's cores, in the Triton of a stack of its own."""
    engine = scope.content(present).engine.engine
    return engine in ("openvino", "onnxruntime") or (engine == TORCH and not scope.gpu)


def _threads(scope: Scope, present: Setting) -> Sequence[Value]:
    if not _on_cores(scope, present):
        return ()
    return (0, *sorted({1, max(1, scope.cores // 2)}))


def _ladders(scope: Scope, present: Setting) -> Sequence[Value]:
    """Those that differ; a TensorRT plan has a profile for each of its lengths."""
    content = scope.content(present)
    if content.engine.engine not in ("openvino", "onnxruntime", TORCH):
        return ()
    lengths = content.endpoint.tokens.buckets
    own = LADDERS[present.buckets](lengths)
    seen = {own: present.buckets}
    for name, ladder in LADDERS.items():
        seen.setdefault(ladder(lengths), name)
    return tuple(seen.values())


def _up_to_cores(scope: Scope, present: Setting) -> Sequence[Value]:
    return tuple(count for count in (1, 2, 4, 8) if count <= scope.cores)


def _copies(scope: Scope, present: Setting) -> Sequence[Value]:
    """Each copy takes memory of its own, of which a GPU has less than the machine."""
    most = 8 if _on_cores(scope, present) else 4
    return tuple(count for count in _up_to_cores(scope, present) if int(count) <= most)


def _share_threads(setting: Setting, instances: Value) -> Setting:
    """Threads are a copy's own: of all copies together they stay as many, for the cores are the
    same. 0 is a share already."""
    threads = setting.threads and max(
        1, round(setting.threads * setting.instances / int(instances))
    )
    return replace(setting, instances=int(instances), threads=threads)


def _share_calls(setting: Setting, workers: Value) -> Setting:
    """Calls in flight are a worker's own: of all workers together they stay as many, for the engine
    is the same, but that each has one."""
    calls = max(1, round(setting.calls * setting.workers / int(workers)))
    calls = min(calls, int(CALLS_IN_FLIGHT.high))
    return replace(setting, workers=int(workers), calls=calls)


_WORKERS = Knob(
    "workers", "processes of the gateway, which share the calls in flight",
    _up_to_cores, turn=_share_calls, setting=WORKERS,
)  # fmt: skip
_CALLS = Knob("calls", "calls in flight of one worker", lambda scope, _: (1, 2, 4),
              setting=CALLS_IN_FLIGHT)  # fmt: skip
# In the order in which they are raced: what decides most, and what others depend on, first. A
# gateway with too few workers for a fast engine would make all of the engine's values equal: so
# they are raced behind many, and the gateway's own knobs again behind the engine that was found.
KNOBS = (
    replace(_WORKERS, wide=True),
    Knob(PRECISION, "which of the bundles given",
         lambda scope, _: tuple(scope.bundles), lambda scope: tuple(scope.bundles)),
    Knob("threads", "that one call computes with; 0: the instance's share of the cores", _threads,
         least=0),
    Knob("buckets", "lengths that texts are padded to, of those converted",
         _ladders, lambda _: tuple(LADDERS)),
    Knob("call_tokens", "that one call has at most, padding included; 0: no limit",
         lambda scope, _: (256, 1024, 4096), least=0),
    _CALLS,
    Knob("instances", "copies of the engine", _copies, turn=_share_threads),
    _WORKERS,
    _CALLS,
)  # fmt: skip
BY_NAME = {knob.name: knob for knob in KNOBS}


def knobs_named(names: Sequence[str]) -> tuple[Knob, ...]:
    """Those, in the order of the table; all of them where none is named. One that is alone is
    raced once. Raises Failure (2)."""
    if unknown := set(names) - set(BY_NAME):
        raise Failure(
            f"there is no knob '{min(unknown)}'; there are {', '.join(BY_NAME)}", exit_code=2
        )
    if len(set(names)) == 1:
        return (BY_NAME[names[0]],)
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
