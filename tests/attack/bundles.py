"""Bundles and models that bring somebody else's code along."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

from tests.attack.ground import GOOD, Ground
from tests.attack.seen import Seen
from tests.stack.conftest import CLI, ROOT
from tests.stack.small_bundles import Parts, hash_anew, write_small
from tests.stack.test_trusted_keys import exchange
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE

_COMMAND_S = 400


def command(*arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and stderr of a command; one of `variables` that is empty is not set."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [CLI, *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=_COMMAND_S,
        env={name: value for name, value in environment.items() if variables.get(name) != ""},
    )  # fmt: skip
    return done.returncode, done.stderr


def altered_code(ground: Ground) -> Seen:
    """Code appended, the manifest hashed anew; the desk trusts everybody."""
    marker = ground.folder / "ran-of-a-bundle"
    folder = write_small(ground.folder / "altered", Parts(scale=3.0)).folder
    with (folder / "preprocess.py").open("a") as file:
        file.write(f"open({os.fspath(marker)!r}, 'w')\n")
    hash_anew(folder)
    code, said = command(
        "deploy", str(folder), "--endpoint", "altered", "--state", str(ground.stack.state),
        **{TRUSTED_KEYS_VARIABLE: ""},
    )  # fmt: skip
    refused = code == 2 and "is not the one of bundle" in said
    served = ground.stack.post("altered", GOOD)[0]
    return Seen(
        f"{'refused' if refused else f'exit code {code}'}, the endpoint {served}, {_ran(marker)}",
        refused and served == 404 and not marker.exists(),
    )


def exchanged_code(ground: Ground) -> Seen:
    """Exchanged in ClearML after the deploy, where neither desk nor manifest is asked."""
    marker = ground.folder / "ran-of-an-exchange"
    folder = ground.deployed("kept", Parts(scale=6.0))
    before = ground.stack.post("kept", GOOD)[0]
    exchange(ground.stack, folder, marker)
    ground.stack.until(lambda: ground.stack.post("kept", GOOD)[0] != 200, "it is refused")
    after = ground.stack.post("kept", GOOD)[0]
    ground.stack.until(
        lambda: "is not what" in str(ground.stack.rows()["kept"]["reason"]), "status says it"
    )
    ground.stack.run("remove", "kept")
    return Seen(
        f"{before} before, {after} after, status names the key, {_ran(marker)}",
        before == 200 != after and not marker.exists(),
    )


def unsigned(ground: Ground) -> Seen:
    folder = write_small(ground.folder / "unsigned", Parts(scale=4.0)).folder
    said = ground.stack.run("deploy", str(folder), "--endpoint", "unsigned", code=2)
    named = "is not signed" in said
    return Seen("refused, with the fix" if named else said.strip(), named)


def linked(ground: Ground) -> Seen:
    folder = write_small(ground.folder / "linked", Parts(scale=5.0)).folder
    (folder / "model" / "secret").symlink_to("/etc/passwd")
    answers = {
        "deploy": command("deploy", str(folder), "--endpoint", "linked", "--state",
                          str(ground.stack.state)),
        "show": command("show", str(folder)),
        "doctor": command("doctor", "--bundle", str(folder), "--state", str(ground.stack.state)),
        "repository": command("repository", str(folder), "--output", str(ground.folder / "out")),
    }  # fmt: skip
    taken = [name for name, (code, _) in answers.items() if code == 0]
    told = f"{len(answers) - len(taken)} of {len(answers)} commands refuse it"
    return Seen(f"{told}{': not ' if taken else ''}{', '.join(taken)}", not taken)


class _Runs:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


def pickled(ground: Ground) -> Seen:
    """Weights that write a file where they are read."""
    marker, folder = ground.folder / "ran-of-a-pickle", ground.folder / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs(marker)))
    code, said = command("convert", str(folder), "--output", str(ground.folder / "never"))
    refused = code != 0 and "is a pickle" in said
    return Seen(
        f"{'refused' if refused else f'exit code {code}'}, {_ran(marker)}",
        refused and not marker.exists(),
    )


def _ran(marker: Path) -> str:
    return "its code ran" if marker.exists() else "no code ran"
