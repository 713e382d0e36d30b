"""The host's task in ClearML, made without a look at the code, and with fewer at the machine.

`Task.init` starts a thread that runs git, parses every Python file of a checkout, imports the cloud
storages' libraries that it finds, and asks for a newer clearml, all beside the first requests. Two
threads that parse at once can end CPython 3.11 ("AST constructor recursion depth mismatch"). An
argument of its own forgoes all that; the host leaves it out.

The task's monitor reads the machine's figures twice a second, and reports their means every 30 s.
Those of processors, disk and network are differences, and have the same mean of fewer looks.

Tested by tests/gateway/test_host_task.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

# Six looks a report.
_LOOKS_A_SECOND = 0.2


@contextmanager
def lean_task(task_class: Any) -> Iterator[None]:
    """A `Task.init` of the block that says nothing of frameworks detects no repository, and one
    that says nothing of the machine's figures reads them every 5 s.
    """
    own = vars(task_class)["init"]
    task_class.init = partial(
        task_class.init,
        # A framework that is not named is connected, as without the argument.
        auto_connect_frameworks={"detect_repository": False},
        auto_resource_monitoring={"sample_frequency_per_sec": _LOOKS_A_SECOND},
    )
    try:
        yield
    finally:
        task_class.init = own
