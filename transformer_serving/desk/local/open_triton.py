"""Tritons whose control answers to whoever asks: a model that is loaded runs its code.

Tested by tests/doctor/test_open_triton.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from transformer_serving.contract.settings.triton_addresses import split_addresses
from transformer_serving.desk.http import NoAnswer, ask_at
from transformer_serving.desk.local.record import LOOPBACK

HTTP_VARIABLE = "TRANSFORMER_SERVING_TRITON_HTTP"
USUAL = f"{LOOPBACK}:8000"
LOADS = "whoever reaches it can load a model, and with it code, without a key"
ANSWERS = "it takes no models, but its statistics, traces and shared memory answer without a key"
# Triton's own word for its way to unload; other servers of this protocol lack it.
_TRITON = "model_repository(unload_dependents)"
_ASK_S = 2.0


@dataclass(frozen=True)
class OpenTriton:
    """`open` says for what."""

    address: str
    open: str


def open_tritons(
    environment: Mapping[str, str], *, own: str | None = None, usual: str = USUAL
) -> Iterator[OpenTriton]:
    """Of the stack's own one, the one at the usual port, and those that the environment names."""
    addresses = [own, usual, *split_addresses(environment.get(HTTP_VARIABLE, ""))]
    for address in dict.fromkeys(filter(None, addresses)):
        if word := openness(address):
            yield OpenTriton(address, word)


def openness(address: str) -> str | None:
    """What a Triton's HTTP has open; None where it is closed, or where there is no Triton.

    It is asked to unload a model that does not exist: where that is refused, so is a load.
    """
    try:
        said = ask_at(address, "/v2", timeout_s=_ASK_S)
        if said.status != 200 or _TRITON not in json.loads(said.body).get("extensions", ()):
            return None
        index = ask_at(address, "/v2/repository/index", method="POST", timeout_s=_ASK_S)
        if index.status != 200:
            return None
        nothing = f"/v2/repository/models/no-model-{secrets.token_hex(8)}/unload"
        unloaded = ask_at(address, nothing, method="POST", timeout_s=_ASK_S)
    except (NoAnswer, ValueError, AttributeError, TypeError):
        return None
    return LOADS if unloaded.status == 200 else ANSWERS
