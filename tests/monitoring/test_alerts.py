"""Every figure that an alert looks at is one that the product gives; each alert has its page."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.alerts_table import PAGE, table
from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.rules import LIMITS, RUNBOOKS, all_alerts

ROOT = Path(__file__).parent.parent.parent
GENERATION = ROOT / "transformer_serving" / "engine" / "backends" / "generation" / "figures.py"
HEADINGS = ["What it means", "See it", "What to do"]
ALERTS = pytest.mark.parametrize(
    "alert", {alert.name: alert for alert in all_alerts()}.values(), ids=lambda one: one.name
)

OBSERVABILITY = ROOT / "docs" / "observability.md"
_SUFFIXES = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def given() -> set[str]:
    """The figures that docs/observability.md tells of, and Prometheus's own of a target."""
    names = {"up"}
    for line in OBSERVABILITY.read_text("utf-8").splitlines():
        if found := re.match(r"\| (transformer_serving_\w+) \|", line):
            names.add(found[1])
            if "histogram" in line:
                names |= {f"{found[1]}{suffix}" for suffix in _SUFFIXES}
    return names | of_generation()


def of_generation() -> set[str]:
    """Those on Triton's page: what declares them imports what only Triton's Python has."""
    values = {
        target.id: node.value
        for node in ast.parse(GENERATION.read_text("utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    prefix, rows = (ast.literal_eval(values[name]) for name in ("_PREFIX", "_ROWS"))
    return {f"{prefix}{name}" for name, _, _ in rows.values()}


@ALERTS
def test_its_figures_are_given(alert: Alert, given: set[str]) -> None:
    text = re.sub(r'"[^"]*"', "", alert.expression)
    for name in LIMITS:
        text = text.replace(f"${name}", "1")
    named = set(re.findall(r"\b(?:transformer_serving_\w+|up)\b", text))
    assert named
    assert named <= given


@ALERTS
def test_its_runbook_says_what_it_means_how_to_see_it_and_what_to_do(alert: Alert) -> None:
    text = (ROOT / RUNBOOKS / alert.runbook).read_text("utf-8")
    assert text.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    means, see, do = re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]
    assert means.strip()
    assert do.strip()
    assert "```" in see


def test_no_page_is_of_no_alert() -> None:
    pages = {path.name for path in (ROOT / RUNBOOKS).glob("*")}
    assert pages == {alert.runbook for alert in all_alerts()}


def test_commands_of_the_runbooks_are_there() -> None:
    """Of the command line, and of figures asked of Prometheus."""
    done = subprocess.run(
        [Path(sys.executable).with_name("transformer-serving"), "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    known = set(re.findall(r"^  ([a-z-]+)(?:  |$)", done.stdout.partition("Commands:")[2], re.M))
    asked = set()
    for path in (ROOT / RUNBOOKS).glob("*.md"):
        asked |= set(re.findall(r"\btransformer-serving ([a-z-]+)", path.read_text("utf-8")))
    assert "doctor" in asked
    assert asked <= known


def test_figures_in_the_runbooks_are_given(given: set[str]) -> None:
    for path in (ROOT / RUNBOOKS).glob("*.md"):
        named = set(re.findall(r"\btransformer_serving_[a-z_]+\b", path.read_text("utf-8")))
        assert named <= given, path.name


def test_the_table_of_the_page_is_as_it_is_made_now() -> None:
    """`make docs` renews it."""
    text = PAGE.read_text("utf-8")
    assert table() in text
    names = {alert.name for alert in all_alerts()}
    assert f"{len(all_alerts())} rules for {len(names)} alerts" in text
