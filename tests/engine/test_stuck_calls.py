"""A call that does not come back ends the process, one that does not."""

from __future__ import annotations

import subprocess
import sys
import threading

from transformer_serving.engine.backends.generation.stuck_calls import StuckCalls


def test_a_call_that_does_not_come_back_ends_it() -> None:
    ended, go = threading.Event(), threading.Event()
    calls = StuckCalls(0.2, ended.set)
    calls.watch()

    def stuck() -> None:
        with calls.call():
            go.wait(60)

    thread = threading.Thread(target=stuck)
    thread.start()
    # Others that come back change nothing.
    while not ended.wait(0.01):
        with calls.call():
            pass
    go.set()
    thread.join()


def test_calls_that_come_back_do_not() -> None:
    ended = threading.Event()
    calls = StuckCalls(1.0, ended.set)
    calls.watch()
    for _ in range(40):
        with calls.call():
            assert not ended.wait(0.05)
    calls.close()


def test_the_process_is_gone() -> None:
    code = (
        "import time\n"
        "from transformer_serving.engine.backends.generation.stuck_calls import StuckCalls\n"
        "calls = StuckCalls(0.2)\n"
        "calls.watch()\n"
        "with calls.call():\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "a call into Triton has not come back; the model's process ends\n"
