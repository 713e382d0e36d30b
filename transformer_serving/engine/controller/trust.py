"""Which versions of the state may be loaded: signed by keys that are trusted now, and checked by
the rules of this kit. A restart may come with other keys, or with a Triton that runs the code of
plans, and an upgrade with stricter rules.

Tested by tests/engine/test_trust.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.refusals import RULES
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE, read_trusted_keys
from transformer_serving.engine.controller.control_plane.verification import (
    Refused,
    check_again,
    refuse_unsigned_code,
)
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import from_text

# Why a version is not loaded.
REFUSALS = (Refused, ConfigError, ContractError)


class Trust:
    """`environment` names the trusted keys; where it cannot be read, nothing is trusted."""

    def __init__(self, environment: Mapping[str, str], repository: Repository) -> None:
        self._environment = environment
        self._repository = repository
        self._entries: frozenset[str] | None = frozenset()
        try:
            keys = read_trusted_keys(environment)
            self._entries = None if keys is None else keys.entries
        except ContractError:
            # What is fetched then is refused with the fault.
            pass

    def covers(self, version: Version) -> bool:
        """Whether all that signed it are trusted; where no key is, nobody needs to have signed."""
        if self._entries is None:
            return True
        signers = frozenset(version.signed_by.split())
        return bool(signers) and signers <= self._entries

    def checked(self, model: str, version: Version) -> Version:
        """The version, once its files pass the rules of this kit; they are read for that only where
        another kit's were asked.

        Raises Refused, ConfigError or ContractError with the reason for `status`.
        """
        if not self.covers(version):
            raise Refused(
                f"it is not known to be signed by a key of {TRUSTED_KEYS_VARIABLE}; it is fetched "
                "and checked again"
            )
        refuse_unsigned_code(version.backend, self._environment)
        if version.rules == RULES:
            return version
        check_again(self._repository.files(model, version.token), from_text(version.config))
        return dataclasses.replace(version, rules=RULES)

    def passing(self, model: str, versions: Iterable[Version]) -> tuple[Version, ...]:
        """Those of the model's that are not refused."""
        found = []
        for version in versions:
            with contextlib.suppress(*REFUSALS):
                found.append(self.checked(model, version))
        return tuple(found)

    def untrusted(self, records: Mapping[str, ModelRecord]) -> frozenset[str]:
        """The models whose version in service must not be loaded as it lies here."""
        return frozenset(m for m, record in records.items() if not self.covers(record.current))

    def unchecked(self, records: Mapping[str, ModelRecord]) -> frozenset[str]:
        """The models that have a version which is to be checked, or dropped, before a load."""
        return frozenset(
            model
            for model, record in records.items()
            if any(one.rules != RULES or not self._lets_in(one) for one in record.versions)
        )

    def _lets_in(self, version: Version) -> bool:
        try:
            refuse_unsigned_code(version.backend, self._environment)
        except REFUSALS:
            return False
        return self.covers(version)
