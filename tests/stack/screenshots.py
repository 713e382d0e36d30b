"""`make screenshots`: the pictures of docs/page.md, of a stack of its own with every task and the
demo's language model."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from scripts.generated_part import take_no_options
from tests.browser import Tab, browser
from tests.stack.conftest import ROOT, started
from tests.stack.shown_tasks import BODIES, NAMES, deploy_all
from transformer_serving.desk.demo import GENERATOR
from transformer_serving.desk.demo.generation import PROMPT

FOLDER = ROOT / "docs" / "images"
# Enough for text on few grounds, and a third of the bytes.
_COLOURS = 160


@dataclass(frozen=True)
class Shot:
    """One picture; `body` None: of /docs with the endpoint opened."""

    file: str
    task: str
    body: str | None
    scheme: str = "light"
    width: int = 1100
    height: int = 960

    @property
    def endpoint(self) -> str:
        return NAMES.get(self.task, GENERATOR)


LONG = '{"text": "' + "tea in Oslo " * 8 + '"}'
SHOTS = (
    Shot("page.png", "zero-shot-classification", BODIES["zero-shot-classification"]),
    Shot("page-dark.png", "rerank", BODIES["rerank"], "dark"),
    Shot("page-error.png", "fill-mask", '{"text": "nothing to fill in"}'),
    Shot("page-long.png", "feature-extraction", LONG, "dark"),
    Shot("page-narrow.png", "text-classification", BODIES["text-classification"], width=360),
    Shot("page-text.png", "text-generation", json.dumps({"text": PROMPT, "stream": True})),
    Shot("page-docs.png", "question-answering", None),
)


def take(shot: Shot, tab: Tab, address: str) -> bytes:
    """The PNG of it."""
    tab.prefer(shot.scheme)
    tab.resize(shot.width, 400)
    name = shot.endpoint
    if shot.body is None:
        tab.open(f"{address}docs")
        at = f"[...document.querySelectorAll('.path')].find(e => e.innerText === '/serve/{name}')"
        tab.until(f"!!{at}")
        tab.evaluate(f"{at}.closest('details').open = true")
        tab.until("!!document.querySelector('table')")
    else:
        tab.open(f"{address}#{name}")
        tab.until(f"document.querySelector('#name').innerText === '{name}'")
        tab.write("#body", shot.body)
        for _ in range(2):
            # The second is as all later ones are.
            tab.evaluate("document.querySelector('#answered').hidden = true")
            tab.press("Enter", control=True)
            tab.until("!document.querySelector('#answered').hidden")
            tab.until("!document.querySelector('#send').disabled")
        tab.evaluate("document.activeElement.blur()")
    whole = tab.evaluate("document.documentElement.scrollHeight")
    tab.resize(shot.width, min(whole, shot.height))
    return small(tab.picture())


def small(png: bytes) -> bytes:
    """With its most frequent colours alone."""
    with Image.open(io.BytesIO(png)) as read:
        picture = read.convert("RGB")
    counted: list[Any] = sorted(picture.getcolors(2**24) or (), reverse=True)[:_COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counted for part in colour])
    made = io.BytesIO()
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(made, "png", optimize=True)
    return made.getvalue()


def take_all(new: Callable[[], Tab], address: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    tab = new()
    for shot in SHOTS:
        (folder / shot.file).write_bytes(take(shot, tab, address))


def main() -> None:
    take_no_options(__doc__)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        with started(place / "state") as stack, browser(place) as new:
            deploy_all(stack, place)
            stack.run("up", "--demo", "generation")
            take_all(new, f"http://127.0.0.1:{stack.base}/", FOLDER)


if __name__ == "__main__":
    main()
