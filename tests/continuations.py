"""Every family of language models in every precision; `python -m tests.continuations` prints the
table of docs/models.md."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.architectures import asked_families
from tests.language_models import FAMILIES, save_language_model
from transformer_serving.desk.builders.language_model import (
    build_language_model,
    open_language_model_engine,
)
from transformer_serving.desk.builders.table import ENGINES
from transformer_serving.desk.export.language_model import export_language_model
from transformer_serving.desk.parity.continuations import (
    ContinuationReport,
    Reference,
    compare_continuations,
    prepare_continuations,
)
from transformer_serving.desk.source.language_model import open_language_model

PRECISIONS = ENGINES["openvino"].precisions


def reports(family: str, folder: Path) -> list[ContinuationReport]:
    """The family's model exported once and compared in each precision."""
    source = open_language_model(str(save_language_model(family, folder / "model")))
    model = export_language_model(source)
    case = prepare_continuations(source, Reference(source))
    found = []
    for precision in PRECISIONS:
        place = folder / precision
        place.mkdir()
        files = build_language_model(precision, model, source, place)
        with open_language_model_engine(files) as engine:
            found.append(compare_continuations(case, precision, engine))
    return found


def main(families: list[str]) -> int:
    """Print the table as Markdown. The exit code counts the cells that are over the tolerance."""
    out, failed = sys.stdout, 0
    out.write(f"| family | window | {' | '.join(PRECISIONS)} |\n|---|---|---|---|---|\n")
    for family in families or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found = reports(family, Path(folder))
            window = open_language_model(str(Path(folder) / "model")).window
        cells = [
            f"{one.equal_tokens} of {one.tokens}, {one.largest_difference:.1e}"
            + (f", refused: {one.fault}" if one.fault else "")
            for one in found
        ]
        failed += sum(one.fault is not None for one in found)
        out.write(f"| {family} | {window or ''} | {' | '.join(cells)} |\n")
        out.flush()
    return failed


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main(asked_families(__doc__, FAMILIES)))
