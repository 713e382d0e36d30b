"""A row of Triton's page of figures: whose it is.

Tested by tests/engine/test_proofs.py and tests/engine/test_controller_parts.py.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r'(\w+)="([^"]*)"')


def labels_of(row: str) -> dict[str, str]:
    return dict(_LABEL.findall(row))


def version_of(row: str) -> tuple[str, str]:
    """Model and version; '' for what it does not name."""
    labels = labels_of(row)
    return labels.get("model", ""), labels.get("version", "")
