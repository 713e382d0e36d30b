"""`python -m transformer_serving.desk.monitoring`: rules.yaml and prometheus.yaml of a folder, and
alertmanager.yaml where it has none; of a copy also its dashboards, of our own folder the Kubernetes
chart's copy.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.monitoring import chart
from transformer_serving.desk.monitoring.receivers import alertmanager_config
from transformer_serving.desk.monitoring.rules import RUNBOOKS, RUNBOOKS_FORM, limits, rules
from transformer_serving.desk.monitoring.scrapes import Place, prometheus_config
from transformer_serving.desk.monitoring.times import TimeScale
from transformer_serving.desk.number import Number

FOLDER = Path(__file__).parents[3] / "compose" / "monitoring"
RULES, PROMETHEUS, ALERTMANAGER = "rules.yaml", "prometheus.yaml", "alertmanager.yaml"
DASHBOARDS = Path("grafana", "dashboards")
COPY = "Copy the folder, name the copy with MONITORING_FOLDER."


def _address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(RUNBOOKS_FORM, value):
        raise click.BadParameter("must be an address without query and without / at its end")
    return value


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    help="Folder for the files, compose/monitoring unless said otherwise.",
)
@click.option(
    "--env-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The compose files' variables: alerts measure against the limits set there.",
)
@click.option(
    "--server-name",
    metavar="NAME",
    default="",
    help="Where the gateway itself speaks TLS: the name in its certificate, whose authority is "
    "ca.crt beside prometheus.yaml.",
)
@click.option(
    "--client-certificate",
    is_flag=True,
    help="Where that gateway asks callers for certificates: Prometheus shows prometheus.crt with "
    "prometheus.key, which lie there too.",
)
@click.option(
    "--runbooks",
    metavar="ADDRESS",
    default=RUNBOOKS,
    callback=_address,
    help="Of the folder docs/runbooks, where those who are told of alerts can open it.",
)
@click.option(
    "--time-scale",
    type=Number(1, 1_000_000),
    default=1.0,
    help="Divide every window and every 'for' by this, to see alerts fire in a test.",
)
def main(
    output: Path,
    env_file: Path | None,
    server_name: str,
    client_certificate: bool,
    runbooks: str,
    time_scale: float,
) -> None:
    """Write rules.yaml and prometheus.yaml from the table of alerts; alertmanager.yaml once.

    A copy of compose/monitoring also gets its dashboards anew.
    """
    if client_certificate and not server_name:
        raise click.UsageError("--client-certificate needs --server-name: it is shown over TLS")
    scale = TimeScale(time_scale)
    try:
        values = limits(read_env_file(env_file) if env_file else {})
    except Failure as failure:
        raise click.ClickException(str(failure)) from failure
    output.mkdir(parents=True, exist_ok=True)
    replace_file(output / RULES, rules(scale, values, runbooks=runbooks))
    place = Place(server_name=server_name, shows_certificate=client_certificate)
    replace_file(output / PROMETHEUS, prometheus_config(scale, place))
    if output == FOLDER:
        chart.write()
    elif (output / DASHBOARDS).is_dir():
        # The operator's own have other names.
        for ours in (FOLDER / DASHBOARDS).glob("*.json"):
            replace_file(output / DASHBOARDS / ours.name, ours.read_text("utf-8"))
    # In a copy it is the operator's, with what opens the doors of those who are told.
    if output == FOLDER:
        replace_file(output / ALERTMANAGER, alertmanager_config(COPY))
    elif not (output / ALERTMANAGER).exists():
        replace_file(output / ALERTMANAGER, alertmanager_config(COPY), mode=0o600)


if __name__ == "__main__":
    main()
