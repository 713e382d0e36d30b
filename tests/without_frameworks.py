"""An environment for clearml-serving's own command and app as its image is: without torch.

They import torch and scikit-learn wherever those are installed, which takes more than a second of
each start, and 200 MB of an app. Nothing that the tests ask of them needs either.
"""

from __future__ import annotations

from pathlib import Path

_ABSENT = ("torch", "sklearn")


def path_without_frameworks(folder: Path, *others: Path) -> str:
    """A PYTHONPATH by which they are not found, with `others` on it; it needs files in `folder`."""
    hidden = folder / "without-frameworks"
    hidden.mkdir(exist_ok=True)
    for name in _ABSENT:
        text = f"raise ModuleNotFoundError('hidden by the test', name={name!r})\n"
        (hidden / f"{name}.py").write_text(text, "utf-8")
    return ":".join(map(str, (hidden, *others)))
