"""How many files, connections among them, a process may hold open.

Tested by tests/gateway/test_workers.py and tests/bench/test_load.py.
"""

from __future__ import annotations

import resource

# Of a hard limit beyond it, the rest is left.
_MOST = 65_536


def most_files() -> int:
    """The hard limit, which the soft one is raised to: shells give 1,024 and allow far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files
