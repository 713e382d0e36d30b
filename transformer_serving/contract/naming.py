"""What an endpoint or a key may be named, and how an endpoint's Triton model is: the same on both
sides of the wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# The version that clearml-serving's own Triton call always asks for.
STOCK_VERSION = 1

VERSION_HEADER = "x-bundle-version"

# In a registered model: the bundle's files that are not for Triton, so that a rollback finds them.
BUNDLE_FOLDER = ".bundle"

# Of a key for the gateway, and of one that signs bundles.
KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY_NAME_RULE = "letters, digits, '.', '_' and '-', at most 64"

# Beside letters and digits, what a shell reads as it stands. Triton 2.51 starts the process of a
# Python model with a line for bash, in which it quotes nothing.
UNQUOTED_MARKS = "./_+,:=@%-"
_UNQUOTED = re.compile(rf"[A-Za-z0-9{re.escape(UNQUOTED_MARKS)}]*")


def is_unquoted(text: str) -> bool:
    """Whether a shell reads it as it stands."""
    return _UNQUOTED.fullmatch(text) is not None


def triton_model_name(serving_url: str, version: str | None = None) -> str:
    """The Triton model of an endpoint: `url`, or `url_version`; a slash becomes an underscore.

    clearml-serving itself joins url and version with an underscore but leaves slashes in, which
    Triton cannot load as a folder name (TritonPreprocessRequest.process in 1.3.5).
    """
    name = f"{serving_url.strip('/')}_{version}" if version else serving_url
    return name.strip("/").replace("/", "_")


@dataclass(frozen=True)
class NameRule:
    """What one use of a name asks of it, and what to say where it is not so."""

    allows: Callable[[str], object]
    says: str


# Of the Triton model's name: one with a dot before it would be a folder of ours, or outside.
SERVED = NameRule(
    lambda name: name and not name.startswith(".") and is_unquoted(name),
    "an endpoint name must not begin with '.', nor be empty, and takes only the letters a to z, "
    f"digits and {UNQUOTED_MARKS}; add it again under another name",
)
# clearml-serving 1.3.5 raises for it within its update lock.
AUTO_UPDATED = NameRule(
    lambda name: "/" not in name,
    "clearml-serving cannot auto-update a name with '/'; choose another name",
)
# As requests name one, with its version or without: also a canary route, of whose name nothing else
# is asked, and an endpoint whose own name has a '/'.
ASKED = NameRule(
    re.compile(r"[^\s/]+(/[^\s/]+)*/*").fullmatch,
    "must be an endpoint's NAME or NAME/VERSION, without blanks and without '/' before it",
)
# What a URL, a folder and a figure's label take as it is.
DEPLOYED = NameRule(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*").fullmatch,
    "an endpoint's name takes letters, digits, '_', '-' and '.', and starts with a letter or digit",
)


def name_fault(name: str, rule: NameRule) -> str | None:
    """Why a name cannot be used so; None where it can."""
    return None if rule.allows(name) else rule.says
