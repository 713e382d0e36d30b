"""What full collections look at, on Python's own collector, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(code: str) -> None:
    """Another process: a test's own frozen objects would stay in this one."""
    head = """
        import gc, weakref
        from preprocess.garbage import Collections, keep_collections_short

        class Ring:
            def __init__(self):
                self.ring = self

        def listen(long_s):
            made = Collections(long_s)
            gc.callbacks.append(made)
            return made

        gc.collect()
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_what_a_long_collection_found_alive_is_left_out_of_the_next() -> None:
    run("""
        before = gc.get_freeze_count()
        listen(long_s=0.0)
        gc.collect()
        assert gc.get_freeze_count() > before + 1000
        seen = len(gc.get_objects())
        gc.collect()
        assert len(gc.get_objects()) <= seen < 1000, seen
    """)


def test_what_a_short_collection_found_stays_in_sight() -> None:
    run("""
        before = gc.get_freeze_count()
        listen(long_s=60.0)
        gc.collect()
        gc.collect(1)
        assert gc.get_freeze_count() <= before
    """)


def test_garbage_of_after_a_collection_is_freed_by_the_next() -> None:
    run("""
        listen(long_s=0.0)
        gc.collect()
        gone = weakref.ref(Ring())
        gc.collect()
        assert gone() is None
    """)


def test_everything_is_looked_at_again_after_a_while() -> None:
    run("""
        made = listen(long_s=0.0)
        ring = Ring()
        gone = weakref.ref(ring)
        gc.collect()
        del ring
        gc.collect()
        assert gone() is not None, "it was left out"
        made.everything_at -= 601
        gc.collect()
        assert gone() is None
    """)


def test_a_worker_that_is_seldom_asked_looks_at_everything_too() -> None:
    """However many objects come and go, Python begins no full collection for them."""
    run("""
        from transformer_serving.gateway.idle_collection import collect_if_due

        collect_if_due()
        made = listen(long_s=0.0)
        ring = Ring()
        gone = weakref.ref(ring)
        gc.collect()
        del ring
        collect_if_due()
        assert gone() is not None, "nothing was due"
        made.everything_at -= 601
        for _ in range(20_000):
            [[] for _ in range(100)]
        assert gone() is not None
        collect_if_due()
        assert gone() is None
    """)


def test_one_listener_a_process_whoever_asks() -> None:
    run("""
        keep_collections_short()
        keep_collections_short()
        assert sum(type(each) is Collections for each in gc.callbacks) == 1
    """)
