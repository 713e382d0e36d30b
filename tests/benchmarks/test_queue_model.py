from __future__ import annotations

import random

import pytest

from benchmarks.queue_model import Engine, Queue, main


def test_an_engine_that_is_hardly_asked_makes_nobody_wait() -> None:
    engine = Engine(call_s=0.001, token_s=0.00001, way_s=0.0005)
    found = Queue(engine, random.Random(3)).run(20, rate=5)
    assert 60 < found.answered < 140
    for high, waits in found.waits.items():
        least = engine.call_s + engine.way_s
        assert least < sorted(waits)[len(waits) // 2] < least + (high + 8) * engine.token_s


def test_it_prints_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seconds=3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == [
        f"to {high} tokens" for high in (16, 32, 64, 128, 256)
    ]
