"""Every figure that an alert looks at is one that the product gives; each alert has its page."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.alerts_table import PAGE, table
from transformer_serving.contract.engine_parameters import ENGINE_PARAMETERS
from transformer_serving.desk.deploy.target import TARGET_VARIABLES, target_of
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


def runbooks() -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in (ROOT / RUNBOOKS).glob("*.md")}


def test_runbooks_whose_lines_are_others_elsewhere_lead_to_them() -> None:
    """With keys, TLS, other names of containers, or pods."""
    lines = re.compile(r"docker compose|compose/|_CONTAINERS|http://127\.0\.0\.1:8080")
    found = {name for name, text in runbooks().items() if lines.search(text)}
    assert found == {
        name for name, text in runbooks().items() if "(../monitoring.md#runbooks-elsewhere)" in text
    }
    assert len(found) > 10


def test_what_takes_a_balancer_says_so() -> None:
    """Without one a container of inference has the host's port, which a second one cannot have."""
    takes = re.compile(r"compose/roll\.sh|INFERENCE_CONTAINERS")
    said = re.compile(r"compose/scale\.yaml|\.\./compose\.md#n-inference-containers")
    steps = [
        (name, step)
        for name, text in runbooks().items()
        for step in re.split(r"\n(?=- |\||\n)", text)
        if takes.search(step)
    ]
    assert len(steps) > 2
    for name, step in steps:
        assert said.search(step), f"{name}: {step}"


def test_who_has_no_balancer_restarts_what_others_roll() -> None:
    for name, text in runbooks().items():
        for step in re.split(r"\n(?=- |\||\n)", text):
            said = "compose.yaml restart inference" in step.replace("\n ", "")
            assert said or "compose/roll.sh" not in step, f"{name}: {step}"


def test_a_line_is_a_query_or_a_command_and_no_block_has_both() -> None:
    """What is pasted into a shell, or asked of Prometheus, is all of that block."""
    command = re.compile(r"docker |curl |kubectl |transformer-serving |for |[A-Z_]+=\S+ ")
    for name, text in runbooks().items():
        for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            kinds = {bool(command.match(line)) for line in block.splitlines()}
            assert len(kinds) == 1, f"{name}: {block}"


def test_a_service_that_is_slow_is_not_loaded_to_see_it() -> None:
    for name, text in runbooks().items():
        for line in re.findall(r"^transformer-serving bench .*", text, re.MULTILINE):
            assert line.endswith(" -c 1"), f"{name}: {line}"


def elsewhere() -> str:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    return page.split("\n## Runbooks elsewhere\n")[1].split("\n## ")[0]


# What a runbook has a person run or look at: each has a row that says what it is elsewhere.
_ELSEWHERE = (
    r"docker compose -f compose/compose\.yaml (?:--profile local )?(?P<it>\w+)(?P<on> [a-z-]+)?",
    r"docker compose … (?P<it>up)",
    r"(?P<it>compose/roll\.sh)",
    r"(?P<it>(?:INFERENCE|TRITON)_CONTAINERS)",
    r"(?P<it>COMPOSE_FILE)=",
    r"(?P<it>http://127\.0\.0\.1:(?:8080|9090))",
    r"(?P<it>transformer-serving (?:rollback|remove))",
    r"(?P<it>my\.env)",
    r"(?P<it>METRICS_KEY_PATH)",
)


def test_each_line_of_the_runbooks_has_its_cells_elsewhere() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in elsewhere().splitlines()
        if line.startswith("| ")
    ][1:]
    assert all(len(row) == 4 and all(row) for row in rows), rows
    assert "the same" not in {cell for row in rows for cell in row}
    first = "\n".join(row[0] for row in rows)
    asked = set()
    for text in runbooks().values():
        plain = re.sub(r" --(?:no-log-prefix|since \d+\w)\b", "", text)
        for pattern in _ELSEWHERE:
            asked |= {
                (found["it"], (found.groupdict().get("on") or "").strip())
                for found in re.finditer(pattern, plain)
            }
    assert ("transformer-serving rollback", "") in asked
    assert ("exec", "triton") in asked
    for what, part in asked:
        of_one = part and what in ("exec", "logs", "restart")
        named = rf"{re.escape(what)}\b.*\b{part}\b" if of_one else re.escape(what)
        assert re.search(named, first), f"{what} {part}"


def test_rollback_and_remove_lead_to_the_variables_that_they_need_in_containers() -> None:
    link = "(../monitoring.md#rollback-and-remove-in-containers-and-pods)"
    assert "\n### Rollback and remove in containers and pods\n" in elsewhere()
    found = {
        name
        for name, text in runbooks().items()
        if re.search(r"transformer-serving (?:rollback|remove)", text)
    }
    assert found == {name for name, text in runbooks().items() if link in text}
    assert len(found) > 5


def test_the_lines_that_take_the_variables_from_my_env_set_all_of_them(tmp_path: Path) -> None:
    """For the command that they lead to, in a shell of its own."""
    (block,) = re.findall(r"```bash\n(.*?)```", elsewhere(), re.DOTALL)
    given = {
        "CLEARML_API_HOST": "http://host.docker.internal:8008",
        "CLEARML_FILES_HOST": "https://files.example",
        **dict.fromkeys(TARGET_VARIABLES[1:3], "'a $key #1'"),
        "CLEARML_SERVING_TASK_ID": "0" * 32,
    }
    lines = (ROOT / "docker" / "example.env").read_text("utf-8").splitlines()
    filled = [f"{line}{given.get(line.removesuffix('='), '')}" for line in lines]
    (tmp_path / "my.env").write_text("\n".join(filled))
    program = tmp_path / "transformer-serving"
    ours = f'{sys.executable} -c "from transformer_serving.desk.cli import main; main()" "$@"'
    program.write_text(f'#!/bin/sh\n[ "$1" != env ] || exec {ours}\necho "$@"\nenv\n')
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", block], cwd=tmp_path, env={"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    asked, *environment = done.stdout.splitlines()
    assert asked == "rollback NAME --state none"
    target = target_of(dict(line.split("=", 1) for line in environment if "=" in line))
    assert target is not None
    assert target.cli.environment["CLEARML_API_HOST"] == "http://127.0.0.1:8008"
    assert {target.cli.environment[name] for name in TARGET_VARIABLES[1:3]} == {"a $key #1"}
    assert target.serve_url == "http://127.0.0.1:8080/serve"


def test_who_is_told_to_restart_inference_is_told_when_not_to() -> None:
    """A worker asks ClearML's server as it starts."""
    assert "Restart, roll or scale nothing of inference until doctor's `api` is ok." in (
        runbooks()["sync-stale.md"].split("## What to do\n\n- ")[1].replace("\n  ", " ")
    )
    found = {
        name for name, text in runbooks().items() if re.search(r"restart inference|roll\.sh", text)
    }
    assert found == {
        name for name, text in runbooks().items() if "(sync-stale.md#what-to-do)" in text
    }
    assert len(found) == 4


def test_a_refused_bundle_is_gone_back_from_before_anything_is_restarted() -> None:
    do = runbooks()["proof-failed.md"].split("## What to do\n\n")[1].replace("\n  ", " ")
    first = do.split("\n- ")[0]
    assert "go back now, `transformer-serving rollback NAME`" in first
    assert "do not restart, scale or roll anything" in first


def test_a_triton_is_restarted_in_a_pod_with_the_models_that_it_has() -> None:
    """A new pod's volume is empty, and of a bundle that cannot be loaded none goes before."""
    (cells,) = re.findall(r"^\| `… restart triton` \|(.*)\|$", elsewhere(), re.MULTILINE)
    pods, warned = cells.split(" | ")[-1].strip().split("`kubectl delete pod POD`")
    assert pods.startswith("`kubectl exec POD -- sh -c 'kill 1'`")
    assert "rollout restart" not in pods
    assert "(runbooks/load-failed.md)" in warned
    found = [text for text in runbooks().values() if "last good bundle" in text.replace("\n ", "")]
    assert len(found) == 2
    assert all("In a pod end the container for that" in text for text in found)


def test_a_log_that_doctor_explains_is_made_by_the_line_before() -> None:
    asked = {name: text for name, text in runbooks().items() if "doctor --log FILE" in text}
    assert len(asked) > 2
    for name, text in asked.items():
        before = text.split("\ntransformer-serving doctor --log FILE")[0].splitlines()[-1]
        made = r"docker compose -f compose/compose\.yaml logs --no-log-prefix .*triton > FILE"
        assert re.fullmatch(made, before), name


def test_runbooks_change_an_engine_by_convert_and_no_file_of_a_bundle() -> None:
    """deploy refuses a bundle whose files are not those of its manifest."""
    for name, text in runbooks().items():
        assert "config.pbtxt" not in text, name
        for one in ENGINE_PARAMETERS:
            assert f"`{one.name}`" not in text, f"{name}: {one.flag}"


def test_a_workers_process_id_is_looked_up_in_its_container() -> None:
    """Its label is what the process is called there; compose's `top` shows the machine's."""
    text = runbooks()["golden-rounds-stale.md"]
    assert "exec inference cat /proc/PID/status" in text
    assert not any(re.search(r"compose\.yaml top\b", one) for one in runbooks().values())


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
