"""How an endpoint's name becomes a Triton model's name, the same on both sides of the wire."""

from __future__ import annotations

# The version that clearml-serving's own Triton call always asks for.
STOCK_VERSION = 1

VERSION_HEADER = "x-bundle-version"

# In a registered model: the bundle's files that are not for Triton, so that a rollback finds them.
BUNDLE_FOLDER = ".bundle"


def triton_model_name(serving_url: str, version: str | None = None) -> str:
    """The Triton model of an endpoint: `url`, or `url_version`; a slash becomes an underscore.

    clearml-serving itself joins url and version with an underscore but leaves slashes in, which
    Triton cannot load as a folder name (TritonPreprocessRequest.process in 1.3.5).
    """
    name = f"{serving_url.strip('/')}_{version}" if version else serving_url
    return name.strip("/").replace("/", "_")
