"""What a call costs of itself and by its tokens, from calls of known cost."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from preprocess.queue.cost import NO_COST, Cost, OwnCost, Sample, cost_of

CALLS = st.lists(st.tuples(st.integers(1, 20_000), st.floats(1e-4, 10)), min_size=1, max_size=12)


def sample(*calls: tuple[float, float]) -> Sample:
    """Of calls with so many tokens and seconds."""
    return Sample(
        sum(tokens for tokens, _ in calls),
        sum(seconds for _, seconds in calls),
        len(calls),
        sum(tokens * tokens for tokens, _ in calls),
        sum(tokens * seconds for tokens, seconds in calls),
    )


@given(CALLS, st.floats(0, 10_000))
def test_all_calls_together_take_what_they_took(
    calls: list[tuple[int, float]], call_tokens: float
) -> None:
    cost = cost_of([sample(call) for call in calls], OwnCost(call_tokens))
    assert cost.call_s >= -1e-9
    assert cost.token_s >= 0
    tokens, seconds = (sum(one) for one in zip(*calls, strict=True))
    assert cost.takes_s(len(calls), tokens) == pytest.approx(seconds)


@given(CALLS)
def test_it_is_the_same_however_the_calls_are_put_together(calls: list[tuple[int, float]]) -> None:
    apart, together = (
        cost_of(samples, OwnCost(56, 0.003))
        for samples in ([sample(one) for one in calls], [sample(*calls)])
    )
    assert apart.call_s == pytest.approx(together.call_s, abs=1e-9)
    assert apart.token_s == pytest.approx(together.token_s, abs=1e-12)


@pytest.mark.parametrize("call_tokens", [0.0, 56.0, 3600.0])
def test_calls_that_are_alike_are_as_they_are_taken_to_be(call_tokens: float) -> None:
    cost = cost_of([sample((18, 0.1), (18, 0.1))], OwnCost(call_tokens))
    assert cost.token_s == pytest.approx(0.1 / (18 + call_tokens))
    assert cost.call_s == pytest.approx(call_tokens * cost.token_s)


def test_a_call_of_a_large_model_costs_no_more_beside_its_tokens() -> None:
    own = OwnCost(56, 0.003)
    small, large = (cost_of([sample((18, seconds))] * 7, own) for seconds in (0.0026, 0.05))
    assert small.call_s == pytest.approx(0.0026 * 56 / 74)
    assert large.call_s == pytest.approx(0.003)
    assert large.token_s == pytest.approx(0.047 / 18)


@given(st.floats(0, 0.1), st.floats(1e-6, 1e-3), st.floats(0.0, 4000.0))
def test_calls_of_different_sizes_tell_it(
    call_s: float, token_s: float, call_tokens: float
) -> None:
    """Single texts and full calls in turns: four fifths of it at once."""
    true = Cost(call_s, token_s)
    seen = [sample((tokens, true.takes_s(1, tokens))) for tokens in (18, 1280) * 4]
    cost = cost_of(seen, OwnCost(call_tokens))
    alike = cost_of([sample((649, true.takes_s(1, 649)))], OwnCost(call_tokens))
    assert abs(cost.token_s - token_s) <= 0.25 * abs(alike.token_s - token_s) + 1e-12


def test_calls_as_different_as_what_is_taken_to_be_known_tell_half_of_it() -> None:
    """Their tokens' variance is a quarter of their mean's square."""
    true = Cost(0.01, 0.002)
    cost = cost_of([sample((tokens, true.takes_s(1, tokens))) for tokens in (10, 30)], NO_COST)
    alike = true.takes_s(1, 20) / 20
    assert cost.token_s == pytest.approx((true.token_s + alike) / 2)


def test_no_call_of_itself_costs_less_than_nothing() -> None:
    """Where long texts take more for each token than short ones."""
    cost = cost_of([sample((100, 0.001), (100, 0.001), (10_000, 10.0))], NO_COST)
    assert cost.call_s == pytest.approx(0.0, abs=1e-9)
    assert cost.token_s == pytest.approx(10.002 / 10_200)


def test_calls_without_tokens_cost_what_they_took() -> None:
    assert cost_of([sample((0, 0.25), (0, 0.75))], NO_COST) == Cost(0.5)
    assert cost_of([], NO_COST) == Cost()
