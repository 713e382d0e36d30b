"""What an endpoint may be named, in each of the uses that a name has."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.naming import (
    ASKED,
    AUTO_UPDATED,
    DEPLOYED,
    SERVED,
    NameRule,
    name_fault,
    triton_model_name,
)


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (SERVED, ["a", "_a", "a.b"], ["", ".proof", "..", "../x"]),
        (
            ASKED,
            ["a", "a/2", "\u00e4(b)", "a/", "a/b/2"],
            ["", "/a", "a//2", "a b", "a\n", "http://h/a"],
        ),
        (AUTO_UPDATED, ["a", "a-b", ".a"], ["a/b", "/a"]),
        (DEPLOYED, ["a", "A9_.-", "0"], ["", "-a", ".a", "a/b", "a b", "\u00e4", "a\n"]),
    ],
)
def test_each_use_has_its_rule(rule: NameRule, good: list[str], bad: list[str]) -> None:
    assert [name_fault(name, rule) for name in good] == [None] * len(good)
    assert [name_fault(name, rule) for name in bad] == [rule.says] * len(bad)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True))
def test_what_is_deployed_is_served_and_may_be_updated_under_its_own_name(name: str) -> None:
    assert triton_model_name(name) == name
    assert [name_fault(name, rule) for rule in (DEPLOYED, SERVED, AUTO_UPDATED)] == [None] * 3


@given(st.text(max_size=8), st.text(alphabet="/ ;$\n\u00e4", min_size=1, max_size=2))
def test_what_holds_anything_else_is_not_deployed(before: str, bad: str) -> None:
    assert name_fault(before + bad, DEPLOYED) == DEPLOYED.says
    assert name_fault(bad + before, DEPLOYED) == DEPLOYED.says


@given(st.text(alphabet="a./_", max_size=8), st.sampled_from([None, "1", ""]))
def test_a_served_model_is_a_folder_below_the_repository(url: str, version: str | None) -> None:
    model = triton_model_name(url, version)
    if name_fault(model, SERVED) is None:
        assert "/" not in model
        assert model not in ("", ".", "..")
