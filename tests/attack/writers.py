"""What somebody does who may write to ClearML, and to nothing else."""

from __future__ import annotations

import hashlib
import http.server
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.attack.control_plane import Caller
from tests.attack.ground import ENDPOINT, GOOD, Ground
from tests.attack.seen import Seen
from tests.contract.archives import OUTSIDE, climbing
from tests.stack.small_bundles import Parts
from tests.test_http import Echo, serving
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE

_SECRET = "of-a-file-of-the-machine"


def climbing_archives(ground: Ground) -> Seen:
    """In the place of an endpoint's code, then of its model."""
    caller, folder = Caller(ground), ground.folder / "packed"
    folder.mkdir()
    path, stack = climbing(folder / "any.tar.gz"), ground.stack
    with path.open("rb") as file:
        sent = caller.session.post(caller.url, files={"attack/any.tar.gz": ("any.tar.gz", file)})
    sent.raise_for_status()
    uri = f"{caller.url}/attack/any.tar.gz"
    ground.deployed("packed-code", Parts(scale=7.0))
    before = stack.post("packed-code", GOOD)[0]
    model = str(stack.rows()["packed-code"]["model_id"])
    code = {
        "key": "py_code_packed-code", "type": "archive", "mode": "output", "uri": uri,
        "hash": hashlib.sha256(path.read_bytes()).hexdigest(),
    }  # fmt: skip
    caller.call(
        "tasks.add_or_update_artifacts", task=stack.serving_id, artifacts=[code], force=True
    ).raise_for_status()
    stack.until(lambda: stack.post("packed-code", GOOD)[0] != 200, "its code is refused")
    after = stack.post("packed-code", GOOD)[0]
    caller.call("models.edit", model=model, uri=uri).raise_for_status()
    stack.until(lambda: "is a link" in _reason(ground, "packed-code"), "its model is refused")
    stack.run("remove", "packed-code")
    written = (folder / OUTSIDE).exists()
    return Seen(
        f"{before} before, {after} after, status names the link; "
        f"{'a file was written outside' if written else 'nothing was written outside'}",
        before == 200 != after and not written,
    )


def asking_sections(ground: Ground) -> Seen:
    """An endpoint whose model's name is a variable, a file or another server's answer."""
    caller, stack = Caller(ground), ground.stack
    task = caller.call("tasks.get_by_id", task=stack.serving_id).json()["data"]["task"]
    own = task["configuration"]["endpoints"]["value"]
    file = ground.folder / "secret"
    file.write_text(f'model_id = "{_SECRET}"')
    variable = ground.key.public.partition(":")[2].strip()
    served, told = 0, 0
    with _listening() as (url, asked):
        asks = {
            f"model_id = ${{{TRUSTED_KEYS_VARIABLE}}}": "has ${...}",
            f'include file("{file}")': "has an include",
            f'include url("{url}")': "has an include",
        }
        for ask, said in asks.items():
            stolen = f"stolen {{\nengine_type = triton\nserving_url = stolen\n{ask}\n}}\n"
            _edit(caller, ground, f"{own}\n{stolen}")
            stack.until(partial(_is_told, ground, said), "it is refused")
            served += stack.post(ENDPOINT, GOOD)[0] == 200
            told += "section 'endpoints' of the task's configuration" in stack.run(
                "remove", "never-there", code=1
            )
    seen = json.dumps(stack.status()) + _logs(stack.state / "logs")
    _edit(caller, ground, own)
    stack.until(lambda: not _is_told(ground, "of the task's configuration"), "it is well again")
    found = [name for name in (variable, _SECRET) if name in seen]
    return Seen(
        f"{len(asks)} sections: {len(asked)} requests made, {len(found)} secrets in status or log; "
        f"{served} times the endpoint goes on, {told} times a command says why it stops",
        not found and not asked and served == told == len(asks),
    )


def _is_told(ground: Ground, said: str) -> bool:
    return said in json.dumps(ground.stack.status())


def _edit(caller: Caller, ground: Ground, text: str) -> None:
    rows = [{"name": "endpoints", "value": text}]
    caller.call(
        "tasks.edit_configuration",
        task=ground.stack.serving_id, configuration=rows, replace_configuration=False, force=True,
    ).raise_for_status()  # fmt: skip


def _reason(ground: Ground, endpoint: str) -> str:
    return str(ground.stack.rows()[endpoint]["reason"])


def _logs(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@contextmanager
def _listening() -> Iterator[tuple[str, list[str]]]:
    """An address inside, and what it was asked for."""
    asked: list[str] = []

    class Inside(Echo):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Inside)) as server:
        yield f"http://127.0.0.1:{server.server_port}/200", asked
