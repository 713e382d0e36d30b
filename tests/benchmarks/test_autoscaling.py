"""The computed day: tokens are kept count of, and pods follow the autoscaler's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.studies import autoscaling_page as page
from benchmarks.studies.autoscaling import (
    BUSY,
    ENGINES,
    MAX_WAIT_S,
    SCALE_DOWN_S,
    SCALERS,
    SYNC_S,
    WITHIN_S,
    Course,
    Engine,
    Scaler,
    demand,
    simulate,
)
from scripts.chart_values import PAGE
from tests.kubernetes.chart import CLEARML, merged, one, rendered
from transformer_serving.desk.bench import scaling

ENGINE = Engine("one", 1000.0, 0.01, 30)
BOTH = Scaler("both", within_s=WITHIN_S, busy=BUSY)


def constant(tokens: float, scaler: Scaler, seconds: int = 1200) -> Course:
    return simulate(ENGINE, scaler, lambda _: tokens, seconds)


@settings(max_examples=20)
@given(
    loads=st.lists(st.floats(0, 20_000), min_size=1, max_size=30),
    within=st.sampled_from([None, 0.1, 1.0]),
    busy=st.sampled_from([None, 0.7]),
    least=st.integers(1, 3),
)
def test_no_token_is_lost(
    loads: list[float], within: float | None, busy: float | None, least: int
) -> None:
    scaler = Scaler("any", within, busy, least=least)
    course = simulate(ENGINE, scaler, lambda second: loads[second // 20], 20 * len(loads))
    assert course.asked == pytest.approx(course.answered + course.refused + course.left)
    assert all(least <= count <= scaler.most for count in course.replicas)


def test_a_fixed_number_stays_and_refuses_what_is_too_much() -> None:
    course = constant(3000, Scaler("fixed", least=2))
    assert set(course.replicas) == {2}
    assert course.refused / course.asked == pytest.approx(1 / 3, abs=0.01)
    assert course.percentile(99) >= MAX_WAIT_S


def test_ten_times_the_load_becomes_pods_that_are_busy_as_wanted() -> None:
    course = constant(6500, BOTH, SCALE_DOWN_S + 600)
    # 6,500 of 700 wanted from each, as the tolerance of a tenth takes it.
    assert course.replicas[-1] in (9, 10)
    assert course.refusals[-1] == 0


def test_pods_come_by_four_at_a_time_and_serve_after_their_start() -> None:
    course = constant(10_000, BOTH, 120)
    first = course.replicas.index(5)
    assert course.replicas[:first] == [1] * first
    # The first figures are of the first second; a pod more serves half a minute later.
    assert first < 2 * SYNC_S
    assert all(refused > 0 for refused in course.refusals[5 : first + ENGINE.start_s - 1])
    assert course.refusals[first + ENGINE.start_s + 1] < course.refusals[first]


def test_pods_go_after_ten_quiet_minutes_a_quarter_a_minute() -> None:
    ends = 600
    course = simulate(ENGINE, BOTH, lambda second: 6500.0 if second < ends else 100.0, 3000)
    # Those that the jump itself brought in excess have gone by then.
    quiet = next(at for at, count in enumerate(course.replicas) if at > ends and count < 9)
    assert quiet >= ends + SCALE_DOWN_S - 2 * SYNC_S
    for before, after in zip(course.replicas[quiet:], course.replicas[quiet + 60 :], strict=False):
        assert after >= int(before * 0.75) - 1
    assert course.replicas[-1] == 1


@pytest.mark.slow
def test_what_waits_and_what_is_answered_belong_together() -> None:
    """The reason for the chart's two triggers, on the engine of docs/kubernetes.md."""
    engine = ENGINES[0]
    of = {
        scaler.title: simulate(engine, scaler, demand(engine))
        for scaler in SCALERS
        if scaler.title in ("what waits", "what is answered", "both")
    }
    both = of["both"]
    assert both.refused < of["what waits"].refused < of["what is answered"].refused
    assert both.percentile(99) < 0.1 < 1 < of["what waits"].percentile(99)
    page_says = PAGE.read_text("utf-8")
    for title, course in of.items():
        row = f"| {engine.title} | {title} | {course.refused / course.asked:.2%} |"
        assert row in page_says


def test_the_autoscaler_is_the_charts() -> None:
    keda = {"triton": {"autoscaling": {"enabled": True, "prometheus": "http://p"}}}
    spec = one(rendered(merged(CLEARML, keda)), "ScaledObject", "demo-triton")["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": SCALE_DOWN_S,
        "policies": [{"type": "Percent", "value": 25, "periodSeconds": 60}],
    }
    assert behavior["scaleUp"]["policies"] == [
        {"type": "Percent", "value": 100, "periodSeconds": SYNC_S},
        {"type": "Pods", "value": 4, "periodSeconds": SYNC_S},
    ]
    assert scaling.BUSY == BUSY


@pytest.mark.slow
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    course = constant(500, BOTH, 50_000)
    found = {(engine.title, scaler.title): course for engine in ENGINES for scaler in SCALERS}
    names = [path.name for path in page.draw(found, tmp_path)]
    assert names == ["curve-autoscaling.svg", "curve-autoscaling.png"]
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())
