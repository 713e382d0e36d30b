"""What vLLM has compiled, of which as much is kept as there are models of it.

vLLM names it by a hash of the model's path among other things, and each fetch has a path of its own
(repository.py). So a Triton that starts again finds what it compiled, and what belongs to a version
that went nobody finds again; nor does anything say which that is.

Tested by tests/engine/test_compiled.py.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

# As compose/vllm.yaml and the chart give it.
CACHE_VARIABLE = "VLLM_CACHE_ROOT"
_FOLDERS = "torch_compile_cache"
# A load that failed leaves one too.
_FOR_EACH = 2


class Compiled:
    """In vLLM's cache; nothing where it has none of its own below `state`, as a user's may be."""

    def __init__(self, environment: Mapping[str, str], state: Path) -> None:
        cache = Path(environment.get(CACHE_VARIABLE, ""))
        is_ours = cache.is_absolute() and cache.is_relative_to(state.absolute())
        self._folder = cache / _FOLDERS if is_ours else None

    def keep(self, models: int) -> None:
        """The newest, enough for so many. One that was loaded long before many others is compiled
        again by the next Triton.
        """
        if self._folder is None:
            return
        # Where it is not there, and where another fetch has just done the same.
        with contextlib.suppress(OSError):
            found = [(entry.stat().st_mtime, entry) for entry in self._folder.iterdir()]
            for _, entry in sorted(found, reverse=True)[_FOR_EACH * models :]:
                # A process that has loaded it needs it no more.
                shutil.rmtree(entry, ignore_errors=True)
