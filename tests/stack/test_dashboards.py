"""Every panel's queries, in a Prometheus that asks a stack with two classifiers and a language
model, under load and while a bundle is replaced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest

from scripts.dashboards.endpoint import ENDPOINT
from scripts.dashboards.expressions import REQUESTS
from scripts.dashboards.panel import Dashboard, Needs, Panel
from scripts.dashboards.service import SERVICE
from scripts.dashboards.table import DASHBOARDS
from tests.engine.triton_server import wait_until
from tests.stack.watched import REVIEWS, TICKETS, Watched, deploy, watched
from transformer_serving.desk.demo import GENERATOR

pytestmark = pytest.mark.long
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
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with watched(folder) as found:
        deploy(found.stack, folder, REVIEWS, 3.0)
        yield found


def finds(stack: Watched, panel: Panel, expression: str) -> bool:
    """Whether there is a number to draw, of any of the endpoints that a person may choose."""
    for endpoint in (REVIEWS, GENERATOR):
        # The names are plain, so Triton's are the same.
        chosen = {"endpoint": endpoint, "model": endpoint}
        if panel.kind.is_instant:
            values = [row["value"] for row in stack.last(expression, **chosen)]
        else:
            rows = stack.since_begun(expression, 1, **chosen)
            values = [value for row in rows for value in row["values"]]
        if any(math.isfinite(float(value)) for _, value in values):
            return True
    return False


@pytest.mark.parametrize(("shown", "panel"), PANELS)
def test_a_panel_has_something_to_show(stack: Watched, shown: Dashboard, panel: Panel) -> None:
    rest = [query.expression for query in panel.queries]
    while rest:
        wait_until(partial(finds, stack, panel, rest[0]), 120, lambda: rest[0])
        rest.pop(0)


def test_endpoints_to_choose_are_those_that_are_served(stack: Watched) -> None:
    name, model = ENDPOINT.variables
    assert stack.choices(name) == [REVIEWS, GENERATOR, TICKETS]
    for endpoint in (REVIEWS, GENERATOR):
        assert stack.choices(model, endpoint=endpoint) == [endpoint]


def test_an_endpoint_that_never_failed_has_a_share_of_0(stack: Watched) -> None:
    """Though there is no series of its failures."""
    (panel,) = (one for one in SERVICE.panels() if one.title == "Share of answers that failed")
    (query,) = panel.queries
    failures = f'{REQUESTS}_count{{endpoint="{TICKETS}",status=~"5.."}}'
    wait_until(lambda: bool(stack.last(f'{REQUESTS}_count{{endpoint="{TICKETS}"}}')), 60)
    assert stack.last(failures) == []
    shares = {row["metric"]["endpoint"]: row["value"][1] for row in stack.last(query.expression)}
    assert shares[TICKETS] == "0"


def test_a_mark_stands_where_another_bundle_answers(stack: Watched) -> None:
    (mark,) = ENDPOINT.marks

    def bundles() -> set[str]:
        rows = stack.since_begun(mark.expression, 1, endpoint=REVIEWS)
        return {row["metric"]["bundle"] for row in rows}

    wait_until(lambda: len(bundles()) == 2, 120, bundles)
