"""A clock that was ahead and is set right: Triton compares the times of files."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from tests.engine.serving import preprocess_of, serving, write_bundle
from tests.engine.test_service import answers
from tests.engine.text_models import write_onnx
from tests.engine.triton_server import TritonServer, wait_until

YEAR_S = 365 * 24 * 3600.0


def loaded_in_the_future(server: TritonServer, *models: str) -> None:
    """Has Triton load them with files of next year; their controller must not run."""
    later = time.time() + YEAR_S
    for model in models:
        for root in (server.repository / model, server.repository / ".versions" / model):
            for path in (root, *root.rglob("*")):
                os.utime(path, (later, later))
        server.client().unload_model(model)
        server.client().load_model(model)


def test_updates_are_loaded_and_old_versions_go(
    triton_server: TritonServer, tmp_path: Path
) -> None:
    with serving(triton_server, tmp_path) as one:
        plane = one.control_plane
        plane.add("early", write_bundle(tmp_path / "a", 101), preprocess_of(101))
        plane.add("stock", write_onnx(tmp_path / "c"))
        one.wait("early", ready=True)
        one.wait("stock", ready=True)
        one.finish()
        loaded_in_the_future(triton_server, "early", "stock")
        one.start()
        for version, scale in ((202, 2.0), (303, 3.0)):
            folder = tmp_path / str(version)
            bundle = write_bundle(folder / "a", version, scale=scale)
            plane.add("early", bundle, preprocess_of(version))
            plane.add("stock", write_onnx(folder / "c", scale=scale))
            one.wait("early", ready=True, bundle_version=version)
            assert answers(triton_server, "early", version, scale)
            wait_until(partial(answers, triton_server, "stock", 1, scale), 60)
        one.wait("early", versions_loaded=[303])
        plane.remove("early")
        plane.remove("stock")
        one.wait_gone("early")
        one.wait_gone("stock")
