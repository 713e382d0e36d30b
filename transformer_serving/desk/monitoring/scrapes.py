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
# Beside prometheus.yaml, as the container sees it.
CA_FILE = "/etc/prometheus/ca.crt"
CERT_FILE, KEY_OF_CERT_FILE = "/etc/prometheus/prometheus.crt", "/etc/prometheus/prometheus.key"


@dataclass(frozen=True)
class Scrape:
    """One job: the services whose containers Docker's DNS names, and the port of their page.

    There are two names where clearml-serving's own compose file calls the service otherwise.
    """

    job: str
    services: tuple[str, ...]
    port: int
    takes_key: bool = True
    is_gateway: bool = False

    def by_dns(self, scale: TimeScale) -> str:
        names = json.dumps(list(self.services))
        again = scale.interval(SCRAPE_S)
        return (
            f"    dns_sd_configs: [{{names: {names}, type: A, port: {self.port}, "
            f"refresh_interval: {again}}}]\n"
        )


SCRAPES = (
    Scrape(INFERENCE_JOB, ("inference", "clearml-serving-inference"), 8080, is_gateway=True),
    # The controller's page, with Triton's behind it.
    Scrape(ENGINE_JOB, ("triton", "clearml-serving-triton"), 8003),
    Scrape("clearml-serving-statistics", ("clearml-serving-statistics",), 9999, takes_key=False),
)


@dataclass(frozen=True)
class Place:
    """Where Prometheus stands: what it finds there, if not what compose gives it.

    `targets` are each job's host:port where no DNS knows them, `server_name` is that of the
    gateway's certificate, empty where it speaks no TLS. With `shows_certificate` Prometheus shows
    it one of its own.
    """

    key_file: str = KEY_FILE
    server_name: str = ""
    shows_certificate: bool = False
    targets: Mapping[str, Sequence[str]] | None = None
    alertmanagers: Sequence[str] = ("alertmanager:9093",)


def prometheus_config(scale: TimeScale, place: Place) -> str:
    """The file's text.

    A key is always sent: who has no keys does not look at it, so that an empty file means none.
    """
    every = scale.interval(SCRAPE_S)
    told = json.dumps(list(place.alertmanagers))
    return (
        f"{HEAD}global:\n"
        f"  scrape_interval: {every}\n"
        f"  scrape_timeout: {every}\n"
        f"  evaluation_interval: {scale.interval(EVALUATE_S)}\n"
        "rule_files: [rules.yaml]\n"
        "alerting:\n"
        f"  alertmanagers: [{{static_configs: [{{targets: {told}}}]}}]\n"
        "scrape_configs:\n"
    ) + "".join(
        _job(row, scale, place)
        for row in SCRAPES
        if place.targets is None or row.job in place.targets
    )


def _job(row: Scrape, scale: TimeScale, place: Place) -> str:
    text = f"  - job_name: {row.job}\n"
    if row.takes_key:
        text += f"    authorization: {{credentials_file: {json.dumps(place.key_file)}}}\n"
    if row.is_gateway and place.server_name:
        name = json.dumps(place.server_name)
        own = f", cert_file: {CERT_FILE}, key_file: {KEY_OF_CERT_FILE}"
        shown = own if place.shows_certificate else ""
        text += "    scheme: https\n"
        text += f"    tls_config: {{ca_file: {CA_FILE}, server_name: {name}{shown}}}\n"
    if place.targets is None:
        return text + row.by_dns(scale)
    return text + f"    static_configs: [{{targets: {json.dumps(list(place.targets[row.job]))}}}]\n"
