"""docs/kubernetes.md: its values are the chart's, and what it shows is taken by it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from scripts.chart_values import PAGE, PART, VALUES, table, values
from tests.kubernetes.chart import (
    CHART,
    CLEARML,
    LOCAL,
    chart,
    container,
    merged,
    one,
    pods,
    rendered,
)
from tests.kubernetes.cluster.figures import DRAIN, DRAINED_TRITONS
from tests.kubernetes.test_refusals import ALONE, TOGETHER
from tests.kubernetes.test_schemas import RELEASES
from transformer_serving.desk.local import container as control_plane
from transformer_serving.engine.controller.first_loads import awaited
from transformer_serving.engine.controller.records import Kind, failed_again

TEXT = PAGE.read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def value_at(path: str) -> Any:
    found: Any = chart().values
    for name in path.split("."):
        found = found[name]
    return found


def test_the_table_is_as_it_is_made_now() -> None:
    """`make docs` renews it."""
    made = f"<!-- {PART}: made by `make {PART}` -->\n{table(VALUES.read_text('utf-8'))}\n<!-- end"
    assert made in TEXT


def test_the_table_has_every_value_and_its_default() -> None:
    rows = {value.path: value.default for value in values(VALUES.read_text("utf-8"))}
    for path, default in rows.items():
        assert value_at(path) == (yaml.safe_load(default) if default else ""), path

    def leaves(found: Any, path: str) -> set[str]:
        if path in rows or not isinstance(found, dict):
            return {path}
        return {leaf for name in found for leaf in leaves(found[name], f"{path}.{name}".strip("."))}

    assert leaves(chart().values, "") == set(rows)


def test_what_is_not_explained_says_itself() -> None:
    """A value without a sentence is one of these, or a Kubernetes field of that name."""
    silent = {
        value.path.rpartition(".")[2]
        for value in values(VALUES.read_text("utf-8"))
        if not value.sentence
    }
    assert silent <= {
        "affinity", "annotations", "className", "enabled", "extraEnv", "host", "hostnames",
        "limits", "maxReplicas", "minReplicas", "nodeSelector", "podAnnotations",
        "priorityClassName", "requests", "size", "tolerations",
    }  # fmt: skip


def test_a_maps_comment_is_no_rows() -> None:
    with pytest.raises(ValueError, match=r"inference\.settings is a map"):
        list(values("inference:\n  # Of both.\n  settings:\n    NAME: 5\n"))


def is_value(path: str) -> bool:
    """Whether the schema has it; below a free map is any name."""
    found = chart_schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    for name in path.split("."):
        if "$ref" in found:
            found = chart_schema["$defs"][found["$ref"].rpartition("/")[2]]
        if "properties" not in found:
            return bool(found["type"] == "object")
        if name not in found["properties"]:
            return False
        found = found["properties"][name]
    return True


def named_values() -> Iterator[tuple[str, str]]:
    """Where, and what has the form of a value's path: in comments of values.yaml, and as code in
    the pages, of which coming-from.md has the official chart's in its first column."""
    parts = {*chart().values, "autoscaling", "resources", "settings"}
    path = re.compile(r"(?<![\w./-])[a-z][A-Za-z]*(?:\.[A-Za-z_]+)+(?![\w/-])")
    comments = [line for line in VALUES.read_text("utf-8").splitlines() if "#" in line]
    texts = {"values.yaml": "\n".join(line.partition("#")[2] for line in comments)}
    for page in sorted(PAGE.parent.rglob("*.md")):
        text = page.read_text("utf-8")
        if page.name == "coming-from.md":
            text = re.sub(r"^\| .+? \|", "", text, flags=re.MULTILINE)
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        texts[page.name] = "\n".join(re.findall(r"`([^`]+)`", text))
    for where, text in texts.items():
        for found in path.findall(text):
            *maps, last = found.split(".")
            if parts & set(maps) and last not in {"conf", "crt", "key", "log", "md", "yaml"}:
                yield where, found


def test_every_value_that_is_named_is_one_of_the_chart() -> None:
    named = list(named_values())
    assert len({path for _, path in named}) > 30
    assert [each for each in named if not is_value(each[1])] == []
    assert not is_value("gateway.settings.TRANSFORMER_SERVING_CALLS_IN_FLIGHT")


def test_the_page_counts_as_those_of_growth_and_observability_do() -> None:
    """Workers and endpoints' series, and what both make together."""
    growth = (PAGE.parent / "growth.md").read_text("utf-8").partition("### 100,000 requests")[2]
    rows = [list(map(str.strip, row.split("|")[1:-1])) for row in growth.splitlines()]
    spared = rows[next(at for at, row in enumerate(rows) if "a tenth to spare" in row)].index(
        "a tenth to spare"
    )
    workers = {int(row[0]): int(row[spared]) for row in rows if row and row[0].isdigit()}
    least, most, ten = workers[1], workers[50], workers[10]
    assert f"| {least} to {most} workers, of 1 to 50 endpoints" in TEXT
    assert f"{least * 35 / 60:.0f} to {most * 35 / 60:.0f} of {least} to {most}" in TEXT
    observability = " ".join((PAGE.parent / "observability.md").read_text("utf-8").split())
    for said in ("has 19 of", "each of those six codes", "88 of its stages; 28 others"):
        assert said in observability
    assert "two of each worker" in observability
    assert "A worker has ten of its own" in observability
    one = 19 * 6 + 88 + 28 + 2
    assert f"| figures | {one} series an endpoint and 10 a worker" in TEXT
    series = 10 * one + 10
    assert f"10 endpoints: {series:,} series a pod" in TEXT
    assert f"some {series * ten // 1000},000 of {ten} pods" in TEXT


def test_the_images_are_pushed_under_the_names_that_the_first_command_pulls(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\n')
    docker.chmod(0o755)
    loop = blocks("")[0]
    assert loop.startswith("for image in ")
    done = subprocess.run(
        ["/bin/sh", "-c", loop], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    pushed = re.findall(r"^push (.+)$", done.stdout, re.MULTILINE)
    command = shlex.split(blocks("bash")[0].splitlines()[0])
    objects = rendered(helm_python.parse_set_string(command[command.index("--set") + 1]))
    assert set(pushed) == set(re.findall(r'"image": "([^"]+)"', json.dumps(objects)))
    named = re.findall(r"^tag (\S+) (\S+)$", done.stdout, re.MULTILINE)
    assert [to for _, to in named] == pushed
    built = (CHART.parent.parent / "compose" / "compose.yaml").read_text("utf-8")
    for name, _ in named:
        assert f"image: {name.replace(':', ':${TRANSFORMER_SERVING_IMAGE_TAG:-')}}}\n" in built


def test_the_first_command_installs_the_local_variant() -> None:
    command = shlex.split(blocks("bash")[0].splitlines()[0])
    assert command[:4] == ["helm", "install", "demo", "kubernetes/chart"]
    assert (CHART.parent.parent / command[3]).samefile(CHART)
    objects = rendered(helm_python.parse_set_string(command[command.index("--set") + 1]))
    one(objects, "StatefulSet", "demo-control-plane")
    one(objects, "Service", "demo-inference")
    # What the third command runs there, and the ports that the second one forwards.
    assert "env" in control_plane.main.commands
    plane = container(objects, "demo-control-plane")
    given = {each["name"]: each.get("value") for each in plane["env"]}
    for name in (control_plane.CONTROL_PLANE_URL, control_plane.SERVE_URL):
        host = str(given[name]).removeprefix("http://").partition("/")[0]
        address, port = host.split(":")
        assert address == "127.0.0.1"
        assert re.search(rf"port-forward service/demo-[a-z-]+ {port}\b", TEXT)


def test_the_values_that_are_shown_are_taken() -> None:
    own_server, scaling, _ = map(yaml.safe_load, blocks("yaml"))
    assert rendered(own_server)
    assert one(
        rendered(CLEARML, {"access": {"metricsKeySecret": "m"}}, scaling),
        "ScaledObject",
        "demo-triton",
    )


def test_two_releases_that_share_a_triton_reach_each_other() -> None:
    """The workers of one go out to the other's Triton, which lets them in."""
    *_, let_in = map(yaml.safe_load, blocks("yaml"))
    ((addresses, own, other),) = re.findall(r"`((\w+)-triton:8000,(\w+)-triton:8000)`", TEXT)
    settings = {"TRANSFORMER_SERVING_TRITON_HTTP": addresses}
    asks = rendered(CLEARML, {"inference": {"settings": settings}}, name=own)
    asked = rendered(CLEARML, let_in, name=other)
    egress = one(asks, "NetworkPolicy", f"{own}-inference")["spec"]["egress"]
    assert {"ports": [{"port": 8000, "protocol": "TCP"}]} in egress
    ingress, _ = one(asked, "NetworkPolicy", f"{other}-triton")["spec"]["ingress"]
    peer = ingress["from"][-1]["podSelector"]["matchLabels"]
    labels = pods(asks)[f"{own}-inference"]["metadata"]["labels"]
    assert peer.items() <= labels.items()
    # Its own workers as before.
    assert len(ingress["from"]) == 2


def test_every_key_that_is_added_is_brought_into_the_cluster() -> None:
    """Gateway and controller know what the Secret of the values holds, and no file of a desk."""
    own_server, *_ = map(yaml.safe_load, blocks("yaml"))
    secret = own_server["access"]["keysSecret"]
    brings = f"kubectl create secret generic {secret} --from-file=keys.json"
    adds = re.compile(r"keys add \S+ (?:--metrics )?--file keys\.json")
    rests = [rest for section in TEXT.split("\n## ") for rest in adds.split(section)[1:]]
    assert len(rests) > 1
    for rest in rests:
        assert brings in rest
    objects = rendered(own_server)
    for name in ("inference", "triton"):
        pod = one(objects, "Deployment", f"demo-{name}")["spec"]["template"]["spec"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == "keys"]
        assert volume["secret"]["secretName"] == secret


def test_the_notes_after_an_install_name_what_is_there() -> None:
    notes = chart().render(
        {"local": {"enabled": True}, "access": {"open": True}}, name="demo", namespace="serving"
    )["transformer-serving/templates/NOTES.txt"]
    for name in ("service/demo-control-plane 8008", "service/demo-inference 8080"):
        assert f"--namespace serving port-forward {name}" in notes
    # With a stack in .stack it would go there, whatever the variables say.
    assert "&& transformer-serving deploy BUNDLE --endpoint NAME --state none\n" in notes


def test_the_notes_after_an_install_with_keys_give_one() -> None:
    values = {"local": {"enabled": True}, "access": {"keysSecret": "keys"}}
    notes = chart().render(values, name="demo", namespace="serving")
    deploy = "TRANSFORMER_SERVING_KEY=KEY transformer-serving deploy BUNDLE"
    assert f"&& {deploy}" in notes["transformer-serving/templates/NOTES.txt"]


REQUESTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "one": ({}, None),
    "one-and-a-half": ({"resources": {"requests": {"cpu": "1500m"}}}, None),
    "two": ({"resources": {"requests": {"cpu": 2}}}, "requests.cpu is 2, and"),
    "a-limit-of-one": ({"resources": {"requests": {"cpu": None}, "limits": {"cpu": "1"}}}, None),
    "a-limit-of-four": (
        {"resources": {"requests": {"cpu": None}, "limits": {"cpu": "4"}}}, "limits.cpu is 4, and",
    ),
    "a-quarter": (
        {"resources": {"requests": {"cpu": "4"}}, "autoscaling": {"cpuPercent": 25}}, None,
    ),
    "by-hand": (
        {"resources": {"requests": {"cpu": "4"}}, "autoscaling": {"enabled": False}}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REQUESTS)
def test_the_notes_tell_of_cpus_that_short_texts_never_fill(case: str) -> None:
    inference, told = REQUESTS[case]
    notes = chart().render(
        merged(CLEARML, {"inference": inference}), name="demo", namespace="serving"
    )["transformer-serving/templates/NOTES.txt"]
    assert ("which is more than a pod uses" in notes) == (told is not None)
    assert told is None or f"\n\ninference.resources.{told} pods are added at 65 % of it" in notes
    assert notes.count("port-forward") == 1


def test_the_page_counts_what_is_refused() -> None:
    assert f"every object of {len(RELEASES)}\nreleases" in TEXT
    assert f"refuses {len(TOGETHER) + len(ALONE)} wrong sets of values" in TEXT


def day_two(task: str) -> str:
    (row,) = re.findall(rf"^\| {re.escape(task)}[^|\n]* \| (.*) \|$", TEXT, re.MULTILINE)
    return str(row)


def test_new_images_replace_every_old_one() -> None:
    """Of the release that the page begins with, and of one with vLLM."""
    row = day_two("new images")
    names = re.findall(r"(images\.\w+)=…", row)
    instead, of = re.findall(r"`(images\.\w+)` in the place of `(images\.\w+)`", row)[0]
    for vllm in (False, True):
        given = [instead if vllm and name == of else name for name in names]
        new = ",".join(f"{name}=registry.example/new:2" for name in given)
        objects = rendered(
            LOCAL, helm_python.parse_set_string(new), {"triton": {"vllm": vllm, "gpus": int(vllm)}}
        )
        images = re.findall(r'"image": "([^"]+)"', json.dumps(objects))
        assert len(images) > 4
        assert set(images) == {"registry.example/new:2"}


def test_the_minutes_after_which_a_first_load_is_given_up_are_told() -> None:
    """Where another model is loaded; the pauses are those of a controller."""
    now, failure, row = 0.0, None, {"endpoint": "b", "ready": False, "failure": "unreached"}
    controller = {"triton": {"ready": True}, "last_sync": 1.0}
    loaded = {"endpoint": "a", "ready": True, "reason": None}
    while True:
        failure = failed_again(failure, "f", "away", now, kind=Kind.UNREACHED)
        rows = [loaded, {**row, "reason": failure.reason, "tries": failure.tries}]
        if awaited({"controller": controller, "endpoints": rows}) is None:
            break
        now = failure.retry_at
    assert round(now / 60) == 5
    (runs,) = re.findall(r"^\| Deployment `-triton`.*$", TEXT, re.MULTILINE)
    assert "for five minutes" in runs
    assert "after five minutes" in day_two("the file server is away")


def test_a_drain_is_told_of_the_tritons_that_it_was_measured_with() -> None:
    """Of the defaults it takes every Triton, so that what is to be done before stands beside."""
    assert f"| {DRAIN} |" in TEXT
    row = day_two("a node that is to be drained")
    default = value_at("triton.replicas"), value_at("triton.maxUnavailable")
    assert default == (1, 1)
    assert f"`triton.replicas={DRAINED_TRITONS}`" in row
    ((name, value),) = re.findall(r"`(triton\.maxUnavailable)=(\d+)`", row)
    objects = rendered(CLEARML, helm_python.parse_set_string(f"{name}={value}"))
    assert one(objects, "PodDisruptionBudget", "demo-triton")["spec"]["maxUnavailable"] == 0
    # The new pod is there before the old one goes, and on another node where this one is closed.
    strategy = one(objects, "Deployment", "demo-triton")["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == 0
    assert re.findall(r"`(kubectl [a-z]+(?: restart| status)?)", row) == [
        "kubectl cordon", "kubectl rollout restart", "kubectl rollout status",
    ]  # fmt: skip


def test_whoever_reads_a_secret_of_yours_is_started_again_when_it_changes() -> None:
    """The control plane first: the others ask it with the new keys."""
    row = day_two("ClearML's keys in a Secret of yours")
    assert "kubectl create secret generic clearml " in row
    assert r"--dry-run=client -o yaml \| kubectl apply -f -" in row
    objects = rendered(LOCAL, {"existingSecret": "clearml"})
    readers = [
        f"{each['kind'].lower()}/{each['metadata']['name']}"
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet") and '"clearml"' in json.dumps(each["spec"])
    ]
    assert len(readers) == 3
    restarted = [
        name
        for line in re.findall(r"kubectl rollout restart ([^`]+)`", row)
        for name in line.split()
    ]
    assert sorted(restarted) == sorted(readers)
    assert restarted[0] == "statefulset/demo-control-plane"


def test_a_backup_is_made_and_restored_in_the_control_planes_pod() -> None:
    restoring = {"local": {"restoring": True}}
    held = container(rendered(LOCAL, restoring), "demo-control-plane")
    served = container(rendered(LOCAL), "demo-control-plane")
    assert held["args"] == ["hold"]
    probes = {"lifecycle", "startupProbe", "readinessProbe", "livenessProbe"}
    assert {name for name in served if name not in held} == probes
    assert "args" not in served
    assert {name: held[name] for name in held if name != "args"}.items() <= served.items()
    for task in ("a backup with `local.enabled`", "back to a backup"):
        row = day_two(task)
        ((pod, command),) = re.findall(
            r"kubectl exec (?:-i )?(\S+) -- python3 -m transformer_serving\.desk\.local\.container "
            r"(\w+) [<>] control-plane\.tar", row,
        )  # fmt: skip
        assert pod == "demo-control-plane-0"
        assert command in control_plane.main.commands
