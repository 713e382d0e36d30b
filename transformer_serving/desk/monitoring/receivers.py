"""alertmanager.yaml: who is told of alerts. Written once; from then on it is the operator's.

Tested by tests/monitoring/test_scrapes.py.
"""

from __future__ import annotations

_TEXT = """\
# Who is told: nobody until a receiver has an address.
# {where}
# Give `pages` and `tickets` what they need, such as
#   webhook_configs: [{{url: "https://chat.example/hook"}}]
route:
  receiver: tickets
  group_by: [alertname, endpoint, namespace, release]
  group_wait: 30s
  group_interval: 5m
  repeat_interval: 12h
  routes:
    - matchers: ['severity="page"']
      receiver: pages
      # One fault may be of all endpoints: it is one page that names them.
      group_by: [alertname, namespace, release]
      repeat_interval: 1h
receivers:
  - name: pages
  - name: tickets
# On Kubernetes a release hides nothing of another; elsewhere no alert has the two labels.
inhibit_rules:
  # A page of an endpoint's budget says all that its ticket would.
  - source_matchers: ['severity="page"', 'alertname=~".+BudgetBurn"']
    target_matchers: ['severity="ticket"', 'alertname=~".+BudgetBurn"']
    equal: [alertname, endpoint, namespace, release]
  # The faster of two budget pages is enough.
  - source_matchers: ['burn="14.4"']
    target_matchers: ['burn="6"']
    equal: [alertname, endpoint, namespace, release]
  # What no Triton serves answers nobody, nor its golden request. Of a canary route's name the
  # requests that fail are told of all the same.
  - source_matchers: ['alertname="EndpointNotReady"']
    target_matchers: ['alertname=~"GoldenRequestFails|RequestErrorBudgetBurn"']
    equal: [severity, endpoint, namespace, release]
  # Without figures of the inference containers there is nothing to say of their requests.
  - source_matchers: ['alertname="NoFigures"']
    target_matchers: ['alertname="ScrapeFails"']
    equal: [job, namespace, release]
"""


def alertmanager_config(where: str) -> str:
    """The file's text; `where` is a sentence on what becomes of the operator's changes."""
    return _TEXT.format(where=where)
