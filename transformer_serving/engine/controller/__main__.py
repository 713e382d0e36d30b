"""Runs the controller: `python -m transformer_serving.engine.controller --help`.

Tested by tests/engine/test_clearml.py.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time

from transformer_serving.engine.controller.options import options_parser

# Before the SDK is imported: its forked reporter would outlive us.
os.environ.setdefault("CLEARML_BKG_THREAD_REPORT", "1")
os.environ.setdefault("CLEARML_SUPPRESS_UPDATE_MESSAGE", "1")
# Its warning of every single try, while the control plane is away, says nothing new.
os.environ.setdefault("CLEARML_LOG_LEVEL", "ERROR")

_log = logging.getLogger("engine.controller")
# After a signal: time for the loop to come round and for a word to the control plane.
_LEAVE_S = 1.5
# Beside the state file.
_PROOFS = "proofs.json"
_DOWNLOADS = "downloads"


def main() -> None:
    options = options_parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    stop = threading.Event()

    _leave_when_told(stop)
    _run(options, stop)
    os._exit(0)


def _leave_when_told(stop: threading.Event) -> None:
    """From SIGTERM or SIGINT on. Their handler runs between any two steps of the main thread, which
    may hold the locks of logging, of starting threads or of an event: another thread takes those.
    """
    told, tell = os.pipe()

    def leave() -> None:
        os.read(told, 1)
        _log.info("leaving")
        stop.set()
        # Threads may be blocked in the SDK or in a long load; the state file is always whole.
        time.sleep(_LEAVE_S)
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(tell, b"."))


def _run(options: argparse.Namespace, stop: threading.Event) -> None:
    # Late: gRPC takes a while to import, and a signal must be heard before that.
    from transformer_serving.engine.controller.control_plane.late import LateControlPlane
    from transformer_serving.engine.controller.figures import TritonFigures
    from transformer_serving.engine.controller.files.compiled import Compiled
    from transformer_serving.engine.controller.files.repository import Repository
    from transformer_serving.engine.controller.files.room import Room
    from transformer_serving.engine.controller.metrics import MetricsPage
    from transformer_serving.engine.controller.metrics_server import keys_of, serve_metrics
    from transformer_serving.engine.controller.proving.proofs import Proofs
    from transformer_serving.engine.controller.proving.prover import Prover
    from transformer_serving.engine.controller.service import ControllerSettings, Service
    from transformer_serving.engine.controller.state import StateFile
    from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
    from transformer_serving.engine.controller.triton.log import TritonLog
    from transformer_serving.engine.controller.triton.server import Triton
    from transformer_serving.engine.triton_process import KEY_VARIABLE

    name = "triton engine" if options.filter == "*" else f"triton engine {options.filter}"
    control_plane = LateControlPlane(
        options.serving_id,
        name,
        options.keep_tasks_seconds,
        options.model_cache,
        options.state.with_name(_DOWNLOADS),
        Room(options.state.parent, options.store_bytes),
    )
    triton = Triton(
        options.triton_grpc,
        TritonLog(options.triton_log),
        BackendProcesses(options.repository),
        os.environ.get(KEY_VARIABLE),
    )
    compiled = Compiled(os.environ, options.state.parent)
    repository = Repository(options.repository, compiled)
    page = MetricsPage(options.triton_metrics)
    service = Service(
        ControllerSettings(
            *(options.poll_seconds, options.grace_seconds, options.filter),
            notice_s=options.notice_seconds,
        ),
        control_plane,
        triton,
        repository,
        StateFile(options.state),
        Prover(triton, repository, Proofs(options.state.with_name(_PROOFS))),
        TritonFigures(options.triton_metrics, page.loaded),
        page,
    )
    serve_metrics(options.metrics_address, page.text, keys_of(os.environ))
    service.run(stop)
    control_plane.close()


if __name__ == "__main__":
    main()
