"""Why a model will not become a bundle."""

from __future__ import annotations

from transformer_serving.failure import Failure


class ConversionRefused(Failure):
    """A model that will not become a bundle; the message says why and what to do instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)
