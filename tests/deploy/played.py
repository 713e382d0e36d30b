"""An endpoint as the desk meets it: its front door, its configuration and its bundles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.deploy.golden import Reply
from transformer_serving.desk.deploy.registry import SERVED, ModelRegistry, Registered

NAME = "texts"


class Models:
    """ClearML's models of the endpoint, the newest first, by the methods that are called."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        if method == "models.get_all":
            ids = fields.get("id")
            return {"models": [row for row in self.rows if ids is None or row["id"] in ids]}
        if method == "models.delete":
            self.rows = [row for row in self.rows if row["id"] != fields["model"]]
            return {}
        assert method == "models.edit"
        (row,) = (row for row in self.rows if row["id"] == fields["model"])
        row["tags"] = fields["tags"]
        return {}


class Registry(ModelRegistry):
    """The real one, but that its bundles lie on this machine."""

    def __init__(self) -> None:
        self.models = Models()
        self.contents: dict[str, Bundle] = {}
        super().__init__(cast("Any", self.models), "0" * 32)

    def add(self, model_id: str, bundle: Bundle, *tags: str) -> None:
        name = f"{NAME} {bundle.manifest.bundle_version}"
        self.models.rows.insert(0, {"id": model_id, "name": name, "tags": list(tags)})
        self.contents[model_id] = bundle

    @contextmanager
    def fetched(self, row: Registered) -> Iterator[Bundle]:
        yield self.contents[row.model_id]


class Target:
    """An endpoint whose front door gives one bundle's golden answer, whatever is configured; with
    no bundle, 404."""

    key = None
    triton = None
    look = "its state"
    files_host = "http://files"
    # Of a server that is not there.
    environment: Mapping[str, str] = MappingProxyType({"CLEARML_API_HOST": "http://127.0.0.1:9"})
    serving_id = "0" * 32

    def __init__(self, folder: Path, configured: str | None = None, **bundles: Bundle) -> None:
        self.lock, self.plans_lock = folder / "deploy.lock", folder / "rollouts.lock"
        self.cli = self
        self.configured = configured
        # Whether the endpoint has the preprocess file of its bundle.
        self.whole = True
        self.kept = Registry()
        for model, bundle in bundles.items():
            self.kept.add(model, bundle, SERVED)
        self.answering = None if configured is None else bundles[configured]

    @property
    def tags(self) -> dict[str, str]:
        return {row["id"]: " ".join(row["tags"]) for row in reversed(self.kept.models.rows)}

    def bundle(self, model_id: str) -> Bundle:
        return self.kept.contents[model_id]

    def check_version(self) -> None:
        pass

    def command(self, words: str) -> str:
        return command_line(words)

    def url(self, name: str) -> str:
        return f"http://front/{name}"

    def ask(self, name: str, request: Any) -> Reply:
        if self.answering is None:
            return Reply(404, {}, None)
        manifest = self.answering.manifest
        return Reply(200, manifest.golden.answer, manifest.bundle_version)

    def run(self, *command: str) -> str:
        assert command == ("model", "list")
        rows = {} if self.configured is None else {NAME: {"model_id": self.configured}}
        return f"Endpoints:\n{json.dumps(rows)}\nModel Monitoring:\n{{}}\nCanary:\n{{}}\n"

    def refusals(self, model_id: str, *, earlier: bool = False) -> Any:
        return SimpleNamespace(reason=lambda: None, earlier=earlier)

    def registry(self) -> Registry:
        return self.kept

    def upload(self, target: Any, bundle: Bundle, name: str, limit: Any) -> str:
        model_id = f"uploaded{len(self.tags)}"
        self.kept.add(model_id, bundle)
        return model_id

    def add(self, target: Any, bundle: Bundle, name: str, model_id: str) -> None:
        self.configured, self.whole = model_id, True
