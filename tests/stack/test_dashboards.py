"""Every panel's queries, in a Prometheus that asks a stack with two classifiers and a language
model, under load and while a bundle is replaced."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial

import pytest

from scripts.dashboards.endpoint import ENDPOINT
from scripts.dashboards.expressions import REQUESTS, P
from scripts.dashboards.panel import Dashboard, Needs, Panel, Query
from scripts.dashboards.service import SERVICE
from scripts.dashboards.table import DASHBOARDS
from tests.engine.triton_server import wait_until
from tests.stack.watched import REVIEWS, TICKETS, Watched, deploy, watched
from transformer_serving.desk.demo import GENERATOR

pytestmark = [pytest.mark.long, pytest.mark.by_hand]
# Their queries are read by promtool in tests/monitoring/test_dashboards.py: no machine of these
# tests has a GPU, so there is nothing that they could find.
WITHOUT_DATA = Needs.GPU
PANELS = [
    pytest.param(shown, panel, id=f"{shown.name}: {panel.title}")
    for shown in DASHBOARDS
    for panel in shown.panels()
    if panel.needs is not WITHOUT_DATA
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with watched(folder) as started:
        deploy(started.stack, folder, REVIEWS, 3.0)
        yield started


def found(loaded: Watched, panel: Panel, query: Query) -> list[dict[str, str]]:
    """The labels of each line with a number, of any endpoint that a person may choose."""
    rows = []
    for endpoint in (REVIEWS, GENERATOR):
        # The names are plain, so Triton's are the same.
        chosen = {"endpoint": endpoint, "model": endpoint}
        if panel.kind.is_instant:
            rows += loaded.last(query.expression, **chosen)
        else:
            rows += loaded.since_begun(query.expression, 1, **chosen)
    return [
        row["metric"]
        for row in rows
        if any(math.isfinite(float(value)) for _, value in row.get("values") or [row["value"]])
    ]


@pytest.mark.parametrize(("shown", "panel"), PANELS)
def test_a_panel_has_something_to_show(loaded: Watched, shown: Dashboard, panel: Panel) -> None:
    """And every line of it has a name."""
    for query in panel.queries:
        wait_until(partial(found, loaded, panel, query), 120, partial(str, query))
        for name in re.findall(r"\{\{(\w+)\}\}", query.legend):
            assert all(labels.get(name) for labels in found(loaded, panel, query)), query


@pytest.mark.parametrize("figure", ["running", "cache_use", "cache_reserved"])
def test_an_engine_that_works_is_seen_to(loaded: Watched, figure: str) -> None:
    """Though it rests between its callers, of whom there are few."""
    asked = f"max_over_time({P}generation_{figure}[1m]) > 0"
    wait_until(lambda: loaded.last(asked), 120, lambda: figure)


def test_endpoints_to_choose_are_those_that_are_served(loaded: Watched) -> None:
    name, model = ENDPOINT.variables
    assert loaded.choices(name) == [REVIEWS, GENERATOR, TICKETS]
    for endpoint in (REVIEWS, GENERATOR):
        assert loaded.choices(model, endpoint=endpoint) == [endpoint]


def test_a_fault_that_never_came_is_a_share_of_0(loaded: Watched) -> None:
    """Though it has no series: of the panel's own query, with a status that nobody sends."""
    (panel,) = (one for one in SERVICE.panels() if one.title == "Share of answers that failed")
    (query,) = panel.queries
    assert 'status=~"5.."' in query.expression
    never = query.expression.replace("5..", "599")

    def shares() -> dict[str, str]:
        return {row["metric"]["endpoint"]: row["value"][1] for row in loaded.last(never)}

    wait_until(lambda: shares().keys() == {REVIEWS, TICKETS, GENERATOR}, 60, shares)
    assert set(shares().values()) == {"0"}
    assert loaded.last(f'{REQUESTS}_count{{status="599"}}') == []


def test_a_mark_stands_where_another_bundle_answers(loaded: Watched) -> None:
    (mark,) = ENDPOINT.marks

    def bundles() -> set[str]:
        rows = loaded.since_begun(mark.expression, 1, endpoint=REVIEWS)
        return {row["metric"]["bundle"] for row in rows}

    wait_until(lambda: len(bundles()) == 2, 120, bundles)
