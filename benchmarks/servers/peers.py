"""The table of peers: who answers, on which server, with which engine, in which shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.servers import choice, texts
from benchmarks.servers.site import EMPTY, OURS, OURS_ORT, STOCK, STOCK_ORT

# What stands in a table's column "engine".
OPENVINO, ONNXRUNTIME, TORCH, NULL, NONE = "openvino", "onnxruntime", "torch", "null", "none"
ENGINE_NAMES = {TORCH: "PyTorch fp32", NULL: "none (zeros)", NONE: "none"}
# Texts that Triton takes in a request: the models' max_batch_size.
TRITON_MOST = 64


@dataclass(frozen=True)
class Peer:
    """One row of every table. `server` None: the raw engine, which has no server.

    `many` says that a request may carry a list of texts, and `most` how many; `kind` sorts the
    tables: ours, a peer, or a limit that nothing behind it can pass. `padded`: the raw engine's
    texts are as long as our bucket for them, not as the text is, where it computes padding.
    `pause_s`: the raw engine of one text at a time waits so long before each call.
    """

    name: str
    title: str
    engine: str
    kind: str
    server: str | None
    path: str = ""
    body: texts.Body = texts.json_text
    content_type: str = "application/json"
    many: bool = True
    padded: bool = False
    most: int = 512
    pause_s: float = 0.0


def _ours(name: str, title: str, server: str, endpoint: str, engine: str) -> Peer:
    return Peer(name, title, engine, "ours", server, f"/serve/{endpoint}")


def _stock(name: str, server: str, endpoint: str, engine: str) -> Peer:
    title = "clearml-serving's own example"
    return Peer(name, title, engine, "peer", server, f"/serve/{endpoint}", many=False)


# Rows of one engine stand next to each other: they compare servers, others compare products.
MAIN = (
    _ours("gateway", "ours, gateway", "gateway", OURS, OPENVINO),
    _ours("app", "ours, unmodified app", "app", OURS, OPENVINO),
    _stock("stock", "app", STOCK, OPENVINO),
    Peer("raw", "the engine alone", OPENVINO, "limit", None),
    Peer("raw-padded", "the engine alone, padded as ours", OPENVINO, "limit", None, padded=True),
    _ours("gateway-ort", "ours, gateway", "gateway", OURS_ORT, ONNXRUNTIME),
    _stock("stock-ort", "app", STOCK_ORT, ONNXRUNTIME),
    Peer("raw-ort", "the engine alone", ONNXRUNTIME, "limit", None),
    Peer("queue", "queue recipe", TORCH, "peer", "queue", "/", texts.raw_text, "text/plain", False),
    Peer("gunicorn", "FastAPI + gunicorn, 2 workers", TORCH, "peer", "gunicorn", "/classify"),
    _ours("null-gateway", "ours, gateway", "gateway-null", OURS, NULL),
    _ours("null-uvicorn", "ours, gateway, in uvicorn", "uvicorn-null", OURS, NULL),
    _ours("null-app", "ours, unmodified app", "app-null", OURS, NULL),
    _stock("null-stock", "app-null", STOCK, NULL),
    Peer("empty", "empty Preprocess", NONE, "limit", "app", f"/serve/{EMPTY}", many=False),
)

MORE = (
    Peer("gateway-v2", "ours, gateway, asked as MLServer is", OPENVINO, "ours", "gateway",
         f"/v2/models/{OURS}/infer", texts.open_inference),
    Peer("gateway-tei", "ours, gateway, asked as TEI is", OPENVINO, "ours", "gateway",
         f"/tei/{OURS}/predict", texts.tei_predict),
    Peer("mlserver", "MLServer 1.7.1, its default", TORCH, "peer", "mlserver",
         "/v2/models/transformer/infer", texts.open_inference),
    Peer("mlserver-batched", "MLServer 1.7.1, adaptive batching on", TORCH, "peer",
         "mlserver-batched", "/v2/models/transformer/infer", texts.open_inference),
    Peer("ensemble", "tokenizer ensemble in Triton", OPENVINO, "peer", "ensemble",
         "/v2/models/ensemble/infer", texts.triton_text, most=TRITON_MOST),
    Peer("triton", "Triton alone, asked with token ids", OPENVINO, "limit", "triton",
         f"/v2/models/{OURS}/infer", texts.triton_ids, most=TRITON_MOST),
    Peer("null-triton", "Triton alone, asked with token ids", NULL, "limit", "triton-null",
         f"/v2/models/{OURS}/infer", texts.triton_ids, most=TRITON_MOST),
    Peer("empty-gateway", "empty Preprocess behind the gateway", NONE, "limit", "gateway",
         f"/serve/{EMPTY}", many=False),
    Peer("litserve", "LitServe", TORCH, "peer", "litserve", "/predict", many=False),
    _ours("gateway-2", "ours, gateway, 2 workers", "gateway-2", OURS, OPENVINO),
    _ours("gateway-3", "ours, gateway, 3 workers", "gateway-3", OURS, OPENVINO),
    _ours("app-2", "ours, unmodified app, 2 workers", "app-2", OURS, OPENVINO),
    _ours("app-3", "ours, unmodified app, 3 workers", "app-3", OURS, OPENVINO),
)  # fmt: skip

PEERS = {peer.name: peer for peer in (*MAIN, *MORE)}


def chosen(names: Sequence[str]) -> list[Peer]:
    """The peers of these names, those of `make bench` without any. Raises Failure (2)."""
    return choice.chosen("peer", names, PEERS) or list(MAIN)
