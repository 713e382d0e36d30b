"""prometheus.yaml: whom Prometheus asks for figures, and whom it tells of alerts.

Tested by tests/monitoring/test_scrapes.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB
from transformer_serving.desk.monitoring.rules import HEAD
from transformer_serving.desk.monitoring.times import EVALUATE_S, SCRAPE_S, TimeScale

KEY_FILE = "/run/secrets/metrics_key"


@dataclass(frozen=True)
class Scrape:
    """One job: the services whose containers Docker's DNS names, and the port of their page.

    There are two names where clearml-serving's own compose file calls the service otherwise.
    """

    job: str
    services: tuple[str, ...]
    port: int
    takes_key: bool = True

    def by_dns(self, scale: TimeScale) -> str:
        names = json.dumps(list(self.services))
        again = scale.interval(SCRAPE_S)
        return (
            f"    dns_sd_configs: [{{names: {names}, type: A, port: {self.port}, "
            f"refresh_interval: {again}}}]\n"
        )


SCRAPES = (
    Scrape(INFERENCE_JOB, ("inference", "clearml-serving-inference"), 8080),
    # The controller's page, with Triton's behind it.
    Scrape(ENGINE_JOB, ("triton", "clearml-serving-triton"), 8003),
    Scrape("clearml-serving-statistics", ("clearml-serving-statistics",), 9999, takes_key=False),
)
ALERTMANAGERS = ("alertmanager:9093",)


def prometheus_config(
    scale: TimeScale,
    *,
    key_file: str = KEY_FILE,
    targets: Mapping[str, Sequence[str]] | None = None,
    alertmanagers: Sequence[str] = ALERTMANAGERS,
) -> str:
    """The file's text. `targets` are each job's host:port where no DNS knows them.

    A key is always sent: who has no keys does not look at it, so that an empty file means none.
    """
    every = scale.interval(SCRAPE_S)
    text = (
        f"{HEAD}global:\n"
        f"  scrape_interval: {every}\n"
        f"  scrape_timeout: {every}\n"
        f"  evaluation_interval: {scale.interval(EVALUATE_S)}\n"
        "rule_files: [rules.yaml]\n"
        "alerting:\n"
        f"  alertmanagers: [{{static_configs: [{{targets: {json.dumps(list(alertmanagers))}}}]}}]\n"
        "scrape_configs:\n"
    )
    for row in SCRAPES:
        if targets is not None and row.job not in targets:
            continue
        text += f"  - job_name: {row.job}\n"
        if row.takes_key:
            text += f"    authorization: {{credentials_file: {json.dumps(key_file)}}}\n"
        if targets is None:
            text += row.by_dns(scale)
        else:
            text += f"    static_configs: [{{targets: {json.dumps(list(targets[row.job]))}}}]\n"
    return text
