"""The chart as Helm renders it, and what its objects are asked about."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import helm_python
import yaml

Manifest = dict[str, Any]
ROOT = Path(__file__).parents[2]
CHART = ROOT / "kubernetes" / "chart"
NAMESPACE = "serving"
LOCAL = {"local": {"enabled": True}, "access": {"open": True}}
CLEARML = {
    "clearml": {
        "CLEARML_WEB_HOST": "https://app.clearml.example",
        "CLEARML_API_HOST": "https://api.clearml.example:8008",
        "CLEARML_FILES_HOST": "http://files.clearml.example",
        "CLEARML_SERVING_TASK_ID": "0123456789abcdef0123456789abcdef",
    },
    "credentials": {"CLEARML_API_ACCESS_KEY": "A", "CLEARML_API_SECRET_KEY": "S"},
    "access": {"keysSecret": "keys"},
}


class _Strict(yaml.CSafeLoader):  # type: ignore[misc]
    """A key that comes twice is an error, as it is to an API server's strict decoding."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [self.construct_object(key, deep) for key, _ in node.value]
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"twice in one map: {twice}"
        return super().construct_mapping(node, deep)


@functools.cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def chart_that_is_told(folder: Path, template: str, asked: str, answer: str) -> helm_python.Chart:
    """A copy in which a look-up has the answer that a cluster would give: rendering asks none."""
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    path = copy / "templates" / template
    text = path.read_text("utf-8")
    assert text.count(asked) == 1
    path.write_text(text.replace(asked, answer), "utf-8")
    return helm_python.Chart.load(copy)


@functools.cache
def chart_in(kubernetes: str) -> helm_python.Chart:
    """The chart as a cluster of this version, such as "1.25", renders it."""
    with TemporaryDirectory() as folder:
        asked = "$.Capabilities.KubeVersion.Version"
        return chart_that_is_told(Path(folder), "disruption.yaml", asked, f'"v{kubernetes}.0"')


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Values from several layers, the last one's counting, as `--values` given several times."""
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            is_map = isinstance(value, dict) and isinstance(values.get(name), dict)
            values[name] = merged(values[name], value) if is_map else value
    return values


def rendered(
    *layers: Mapping[str, Any],
    name: str = "demo",
    namespace: str = NAMESPACE,
    kubernetes: str | None = None,
) -> list[Manifest]:
    """Every object of a release, in a cluster of that version where one is given.

    Raises helm_python.HelmError for values that are refused.
    """
    shown = chart() if kubernetes is None else chart_in(kubernetes)
    texts = shown.render(merged(*layers), name=name, namespace=namespace)
    objects: list[Manifest] = []
    for path, text in texts.items():
        if path.endswith(".yaml"):
            objects += [one for one in yaml.load_all(text, _Strict) if one]
    return objects


def one(objects: list[Manifest], kind: str, name: str) -> Manifest:
    found = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def kinds(objects: list[Manifest]) -> set[str]:
    return {each["kind"] for each in objects}


def pods(objects: list[Manifest]) -> dict[str, Manifest]:
    """The pod of each Deployment and StatefulSet, by the object's name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def container(objects: list[Manifest], name: str) -> Manifest:
    found: Manifest = pods(objects)[name]["spec"]["containers"][0]
    return found
