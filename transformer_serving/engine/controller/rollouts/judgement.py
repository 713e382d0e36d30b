"""Whether a candidate does worse than the old bundle, does well enough, or must be asked more.

Every figure is a share of answers: errors, answers that differ from the old bundle's to the same
request, answers slower than its median or p99 times what is allowed. It is worse where even the
lower bound is beyond what is allowed, and well where the upper bound is not. The next step gives
the candidate a share of all requests, so what it may cost is weighed with that: of a figure that
fails more, the first steps need few requests, the last ones many.

All looks of a rollout together err with 1 - confidence at most, in either direction: each step has
its part of that, half of it for all lengths together and half for each length, and the k-th look at
a step 1 / (k (k + 1)) of it (Bonferroni). So one may look as often as one likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from transformer_serving.contract.rollout import Allowed, Arm
from transformer_serving.engine.controller.rollouts import bounds

WORSE, WELL, UNSURE = "worse", "well", "unsure"
# Bounds that may each be wrong: of errors, differing answers, the old median, the share slower than
# it, and p99, of all lengths; the last three of each length, of which there are no more than powers
# of two up to 65,536 tokens.
_TOGETHER, _OF_LENGTHS = 5, 3 * 17
_ALL = "all lengths"
_A_PERCENT = 0.01


@dataclass(frozen=True)
class Verdict:
    """Of one figure; `says` are its numbers in words."""

    figure: str
    verdict: str
    says: str

    def line(self) -> str:
        return f"{self.figure}: {self.verdict}; {self.says}"


def judge(
    new: Arm, old: Arm, allowed: Allowed, *, next_share: float, steps: int, look: int,
    timed: bool = True, mirrored: bool = False,
) -> list[Verdict]:  # fmt: skip
    """The verdicts of a step, those of all lengths first.

    `next_share` is that of all requests which the candidate gets next, `steps` how many the rollout
    has, `look` the number of this look at the step, from 1. Where it is not `timed`, because the
    old bundle answers nothing beside it, errors alone are judged. Answers are compared where
    requests are `mirrored`.
    """
    error = (1 - allowed.confidence) / 2 / steps / (look * (look + 1))
    z = bounds.normal_of(error / _TOGETHER)
    verdicts = [_errors(new, old, allowed, next_share, z)]
    if not timed:
        return verdicts
    if mirrored:
        verdicts.append(_differing(new, allowed, next_share, z))
    verdicts += _times(_ALL, new.times(), old.times(), allowed, next_share, z)
    z = bounds.normal_of(error / _OF_LENGTHS)
    lengths = sorted(set(new.lengths) & set(old.lengths))
    if len(lengths) > 1:
        for length in lengths:
            name = f"up to {length} tokens"
            verdicts += _times(name, new.lengths[length], old.lengths[length], allowed, 1.0, z)
    return verdicts


def of_all(verdicts: Iterable[Verdict]) -> tuple[str, Verdict]:
    """The verdict of the step and the one that decides it.

    A length alone can only say that it is worse: a rare one would be waited for without end, and
    which bundle a request goes to does not depend on its length.
    """
    found = list(verdicts)
    for wanted in (WORSE, UNSURE):
        for verdict in found:
            of_length = verdict.figure.startswith(("median", "p99")) and _ALL not in verdict.figure
            if verdict.verdict == wanted and not (of_length and wanted == UNSURE):
                return wanted, verdict
    return WELL, found[0]


def _errors(new: Arm, old: Arm, allowed: Allowed, next_share: float, z: float) -> Verdict:
    found = bounds.excess((new.errors, new.requests), (old.errors, old.requests), z)
    verdict = _harm(found, allowed.harm, next_share)
    says = (
        f"{new.errors} of {new.requests} ({_percent(new.errors, new.requests)}) beside "
        f"{old.errors} of {old.requests} ({_percent(old.errors, old.requests)}), "
        f"{_points(found)} more; {_allowance(allowed.harm, next_share)}"
    )
    return Verdict("errors", verdict, says)


def _differing(new: Arm, allowed: Allowed, next_share: float, z: float) -> Verdict:
    """Of the requests that both bundles answered."""
    found = bounds.share(new.differ, new.compared, z)
    return Verdict(
        "differing answers", _harm(found, allowed.differ, next_share),
        f"{new.differ} of {new.compared} mirrored ({_percent(new.differ, new.compared)}), "
        f"{_points(found)}; {_allowance(allowed.differ, next_share)}; {new.left_out} not mirrored",
    )  # fmt: skip


def _times(
    name: str, new: Mapping[int, int], old: Mapping[int, int], allowed: Allowed,
    next_share: float, z: float,
) -> Iterator[Verdict]:  # fmt: skip
    yield _median(name, new, old, allowed, z)
    total, before = sum(new.values()), sum(old.values())
    limit = allowed.p99 * bounds.quantile(old, 0.99)
    slow = bounds.slower_than(new, limit), bounds.slower_than(old, limit)
    found = bounds.excess((slow[0], total), (slow[1], before), z)
    verdict = _harm(found, max(allowed.harm, _A_PERCENT), next_share)
    yield Verdict(
        f"p99, {name}", verdict,
        f"{_ms(bounds.quantile(new, 0.99))} beside {_ms(bounds.quantile(old, 0.99))}; "
        f"{slow[0]} of {total} slower than {_ms(limit)} beside {slow[1]} of {before}, "
        f"{_points(found)} more; {_allowance(max(allowed.harm, _A_PERCENT), next_share)}",
    )  # fmt: skip


def _median(
    name: str, new: Mapping[int, int], old: Mapping[int, int], allowed: Allowed, z: float
) -> Verdict:
    """Worse where most of its answers are beyond what is allowed of any median the old may have."""
    total = sum(new.values())
    between = bounds.quantile_bounds(old, 0.5, z)
    above_all = bounds.share(bounds.slower_than(new, allowed.p50 * between.high), total, z)
    above_any = bounds.share(bounds.slower_than(new, allowed.p50 * between.low), total, z)
    verdict = WORSE if above_all.low > 0.5 else WELL if above_any.high < 0.5 else UNSURE
    return Verdict(
        f"median, {name}", verdict,
        f"{_ms(bounds.quantile(new, 0.5))} of {total} beside {_ms(bounds.quantile(old, 0.5))} of "
        f"{sum(old.values())}; allowed {allowed.p50:g} times",
    )  # fmt: skip


def _harm(found: bounds.Interval, harm: float, next_share: float) -> str:
    if found.low > harm:
        return WORSE
    return WELL if next_share * found.high <= harm else UNSURE


def _allowance(harm: float, next_share: float) -> str:
    return f"allowed {100 * harm:g} %, and of all requests at the next {100 * next_share:g} %"


def _points(found: bounds.Interval) -> str:
    return f"between {100 * found.low:.1f} and {100 * found.high:.1f} %"


def _percent(hits: int, total: int) -> str:
    return f"{100 * hits / total:.1f} %" if total else "none"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
