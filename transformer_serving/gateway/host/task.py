"""The host's task in ClearML, made without a look at the code that runs.

`Task.init` starts a thread that runs git, parses every Python file of a checkout, imports the cloud
storages' libraries that it finds, and asks for a newer clearml, all beside the first requests. Two
threads that parse at once can end CPython 3.11 ("AST constructor recursion depth mismatch"). An
argument of its own forgoes all that; the host leaves it out.

Tested by tests/gateway/test_host_task.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def without_analysis(task_class: Any) -> Iterator[None]:
    """A `Task.init` of the block that says nothing of frameworks detects no repository."""
    own = vars(task_class)["init"]
    # A framework that is not named is connected, as without the argument.
    task_class.init = partial(task_class.init, auto_connect_frameworks={"detect_repository": False})
    try:
        yield
    finally:
        task_class.init = own
