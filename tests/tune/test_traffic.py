"""What counts as traffic between two looks at a page of figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.traffic import Traffic, refuse_traffic
from transformer_serving.desk.watch.counters import Page, read_page

PAGE = """
# TYPE transformer_serving_requests counter
transformer_serving_requests_total{{endpoint="a",status="200"}} {ok}
transformer_serving_requests_total{{endpoint="b",status="503"}} {refused}
# TYPE transformer_serving_request_duration_seconds histogram
transformer_serving_request_duration_seconds_count{{endpoint="a",status="200",code="ok"}} {ok}
transformer_serving_request_duration_seconds_count{{endpoint="foreign",code="ok"}} {foreign}
# TYPE transformer_serving_gateway_requests_in_flight gauge
transformer_serving_gateway_requests_in_flight{{endpoint="foreign"}} {running}
# TYPE transformer_serving_waiting_tokens gauge
transformer_serving_waiting_tokens {waiting}
# TYPE transformer_serving_running_streams gauge
transformer_serving_running_streams{{endpoint="c"}} {streams}
"""
QUIET = {"ok": 7, "refused": 3, "waiting": 0, "streams": 0, "foreign": 5, "running": 0}


@pytest.mark.parametrize(
    ("second", "count"),
    [
        ({}, 0),
        ({"ok": 9}, 2),
        ({"refused": 4}, 1),
        ({"waiting": 30}, 1),
        ({"streams": 1}, 1),
        # An endpoint of another's code, which the gateway alone counts.
        ({"foreign": 8}, 3),
        ({"ok": 9, "foreign": 8}, 5),
        ({"running": 1}, 1),
        ({"ok": 2, "refused": 0, "foreign": 0}, 2),  # a gateway that began again
    ],
)
def test_traffic_is_what_was_answered_and_what_waits(second: dict[str, int], count: int) -> None:
    pages = iter(read_page(PAGE.format(**values), 0.0) for values in (QUIET, QUIET | second))
    assert Traffic(lambda: next(pages)).count() == count


def test_a_stack_that_has_gone_meanwhile_has_none() -> None:
    pages = iter([read_page(PAGE.format(**QUIET), 0.0)])

    def look() -> Page:
        for page in pages:
            return page
        raise Failure("it is down")

    assert not Traffic(look).is_there()


def test_a_stack_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert not refuse_traffic(tmp_path, seconds=0.0)()
