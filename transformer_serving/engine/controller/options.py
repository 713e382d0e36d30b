"""What `python -m transformer_serving.engine.controller` is told.

Tested by tests/engine/test_controller_options.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

_LONGEST_S = 1e9


def options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_serving.engine.controller",
        description="Keep a Triton's models equal to the endpoints of a ClearML serving task.",
    )
    _add_addresses(parser)
    _add_files(parser)
    _add_times(parser)
    return parser


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--serving-id", required=True, help="ClearML id of the serving task")
    parser.add_argument(
        "--filter",
        default="*",
        help="only endpoints whose address fits this pattern, as in a shell",
    )
    parser.add_argument(
        "--triton-grpc",
        default="127.0.0.1:8001",
        help="Triton's gRPC, host:port or unix:/path:port; where its control is locked, "
        "TRANSFORMER_SERVING_TRITON_KEY has the key",
    )
    parser.add_argument(
        "--triton-metrics",
        help="address of Triton's metrics page, for ClearML and after the controller's own",
    )
    parser.add_argument(
        "--metrics-address",
        default="127.0.0.1:8003",
        type=_address,
        help="host:port where GET /metrics answers, for Prometheus (default 127.0.0.1:8003); "
        "where TRANSFORMER_SERVING_KEYS_FILE names keys, to those for metrics",
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repository", required=True, type=Path, help="the folder of Triton's --model-repository"
    )
    parser.add_argument(
        "--state", required=True, type=Path, help="file for the status and the last good state"
    )
    parser.add_argument(
        "--model-cache",
        type=Path,
        help="folder that several Tritons share, where each model is fetched once for all",
    )
    parser.add_argument(
        "--store-bytes",
        default=0,
        type=int,
        help="bytes that models and their downloads may take beside the state, where its file "
        "system knows no such limit (default 0: none)",
    )
    parser.add_argument(
        "--triton-log", type=Path, help="Triton's log file, for the cause of a failed load"
    )


def _add_times(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--poll-seconds", default=2.0, type=_seconds, help="seconds between two syncs (default 2)"
    )
    parser.add_argument(
        "--grace-seconds",
        default=30.0,
        type=_seconds,
        help="seconds that the previous version serves on after an update (default 30)",
    )
    parser.add_argument(
        "--notice-seconds",
        type=_seconds,
        help="seconds until every worker knows of an update: so long a version that cannot be "
        "loaded beside the previous one waits, and up to a poll longer, as only seconds up to the "
        "control plane's last answer count (default: --grace-seconds)",
    )
    parser.add_argument(
        "--keep-tasks-seconds",
        default=0.0,
        type=_seconds,
        help="delete the task of an inference worker that gave no sign for so many seconds "
        "(default 0: never)",
    )


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < _LONGEST_S:
        raise argparse.ArgumentTypeError(f"must be seconds from 0 on, below {_LONGEST_S:.0e}")
    return number


def _address(text: str) -> str:
    from transformer_serving.engine.controller.metrics_server import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
