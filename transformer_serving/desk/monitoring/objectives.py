"""What is promised to callers, and the alerts that say when a promise is being broken.

One row here makes four alerts, one a burn rate. Of a time, `bad` is all that came less what came
within the limit, which is a bound of the histogram's buckets.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transformer_serving.desk.monitoring.alerts import AND, Alert, enough, share
from transformer_serving.desk.monitoring.times import (
    BUDGET_DAYS,
    BURN_RATES,
    PAGE,
    BurnRate,
    TimeScale,
)

# A group of its own: rules of one are computed one after the other, and days take the longest.
OVER_DAYS = "objectives over days"
_FIRST = "transformer_serving_first_token_seconds"
_REQUESTS = "transformer_serving_request_duration_seconds"
_OK = 'endpoint!="",code="ok"'
# A text that is generated takes as long as it is asked to be; its first token has a row of its own,
# under the endpoint's name. A canary route's is a name of requests alone: the gateway tells of it,
# and of endpoints, too, where there is one. What was such in the window is, though it be removed by
# now; the row alone says nothing, as it stays until the workers end, whatever bundle comes.
_WHOLE = (
    f"unless on (endpoint) (sum by (endpoint) (increase({_FIRST}_count[$over])) > 0 "
    "or max by (endpoint) "
    "(max_over_time(transformer_serving_gateway_generates_text[$over])))"
)


@dataclass(frozen=True)
class Objective:
    """`bad` and `eligible` are rates by endpoint over `$over`; `target` is the good ones' share."""

    alert: str
    target: float
    bad: str
    eligible: str
    says: str

    def alerts(self) -> Iterator[Alert]:
        for rate in BURN_RATES:
            over = TimeScale().text(rate.pace.window_s)
            lasts = f"{BUDGET_DAYS / rate.factor:.2g} of {BUDGET_DAYS} days"
            yield Alert(
                self.alert,
                "objectives" if rate.severity == PAGE else OVER_DAYS,
                self._expression(rate),
                rate.pace,
                rate.severity,
                f"{self.says}: {{{{ $value | humanizePercentage }}}} of them over {over}, and its "
                f"error budget lasts {lasts} at most.",
                {"burn": f"{rate.factor:g}"},
            )

    def _expression(self, rate: BurnRate) -> str:
        most = f"{rate.factor * (1 - self.target):.6g}"
        burns = f"{share(self.bad, self.eligible)} > {most}"
        looks = [burns.replace("$over", window) for window in ("$window", "$short")]
        return AND.join((*looks, enough(self.bad).replace("$over", "$window")))


OBJECTIVES = (
    # What a caller did wrong is not the service's fault, nor does much of it hide a fault: only
    # answers of 200 and of 500 and above count.
    Objective(
        "RequestErrorBudgetBurn",
        0.999,
        f'sum by (endpoint) (rate({_REQUESTS}_count{{endpoint!="",status=~"5.."}}[$over]))',
        f'sum by (endpoint) (rate({_REQUESTS}_count{{endpoint!="",status=~"200|5.."}}[$over]))',
        "Requests of {{ $labels.endpoint }} fail",
    ),
    Objective(
        "LatencyBudgetBurn",
        0.99,
        f"(sum by (endpoint) (rate({_REQUESTS}_count{{{_OK}}}[$over])) "
        f'- sum by (endpoint) (rate({_REQUESTS}_bucket{{{_OK},le="1.0"}}[$over]))) {_WHOLE}',
        f"sum by (endpoint) (rate({_REQUESTS}_count{{{_OK}}}[$over]))",
        "Answers of {{ $labels.endpoint }} take over 1 s",
    ),
    Objective(
        "FirstTokenBudgetBurn",
        0.95,
        f"sum by (endpoint) (rate({_FIRST}_count[$over])) "
        f'- sum by (endpoint) (rate({_FIRST}_bucket{{le="2.5"}}[$over]))',
        f"sum by (endpoint) (rate({_FIRST}_count[$over]))",
        "First tokens of {{ $labels.endpoint }} take over 2.5 s",
    ),
)
