"""The figures of a stack that is well."""

from __future__ import annotations

from tests.monitoring.case import ENDPOINT, GATEWAY, MODEL, PROOF, TRITON, WORKERS, gauge, rising
from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB

_STORIES = {"endpoint": "stories"}
# All of it at once: two workers of a container, a Triton, and a language model beside the texts.
HEALTHY = [
    *WORKERS,
    gauge("up", 1, job=INFERENCE_JOB, **GATEWAY),
    gauge("up", 1, job=ENGINE_JOB, **TRITON),
    gauge("gateway_golden_ok", 1, pid="11", **ENDPOINT, **GATEWAY),
    gauge("gateway_golden_ok", 1, pid="12", **ENDPOINT, **GATEWAY),
    rising("gateway_refused_total", 50, code="malformed_body", **GATEWAY),
    rising("requests_total", 6_000, status="200", **ENDPOINT, **GATEWAY),
    rising("requests_total", 900, status="422", **ENDPOINT, **GATEWAY),
    rising("requests_total", 3, status="503", **ENDPOINT, **GATEWAY),
    rising("call_tokens_total", 90_000, **ENDPOINT, **GATEWAY),
    rising("call_padding_tokens_total", 9_000, **ENDPOINT, **GATEWAY),
    rising("call_texts_count", 600, **ENDPOINT, **GATEWAY),
    gauge("waiting_tokens", 900, **GATEWAY),
    gauge("waiting_tokens_limit", 800_000, **GATEWAY),
    rising("request_duration_seconds_count", 6_000, status="200", code="ok", **ENDPOINT),
    rising("request_duration_seconds_bucket", 5_999, code="ok", le="1.0", **ENDPOINT),
    rising("request_duration_seconds_count", 3, status="503", code="overloaded", **ENDPOINT),
    rising("gateway_last_sync_timestamp_seconds", 60, pid="11", **GATEWAY),
    gauge("gateway_generates_text", 1, endpoint="stories", pid="11", **GATEWAY),
    rising("first_token_seconds_count", 60, **_STORIES, **GATEWAY),
    rising("first_token_seconds_bucket", 59, le="2.5", **_STORIES, **GATEWAY),
    gauge("running_streams", 20, **_STORIES, **GATEWAY),
    gauge("running_streams_limit", 256, **GATEWAY),
    rising("cut_sequences_total", 5, reason="disconnect", **_STORIES, **GATEWAY),
    gauge("engine_ready", 1, bundle="7", **ENDPOINT, **TRITON),
    gauge("engine_proof", 1, state="proven", **PROOF),
    gauge("engine_proof", 0, state="failed", **PROOF),
    gauge("engine_load_failed", 0, kind="refused", **ENDPOINT, **TRITON),
    gauge("engine_triton_ready", 1, **TRITON),
    rising("engine_last_sync_timestamp_seconds", 60, **TRITON),
    gauge("generation_cache_use", 0.4, **MODEL),
    gauge("generation_cache_reserved", 0.8, **MODEL),
    gauge("generation_rebuilt_total", 0, **MODEL),
    gauge("gateway_worker_restarts_total", 1, **GATEWAY),
    gauge("gateway_start_time_seconds", 1, pid="11", **GATEWAY),
    gauge("engine_triton_starts_total", 1, **TRITON),
    gauge("engine_start_time_seconds", 1, **TRITON),
]
