"""Triton and its controller: what models cost there, the GPU, memory, loads and proofs."""

from __future__ import annotations

from scripts.dashboards.expressions import CACHE, UNLESS_TEXT, P, age, of, rate, ratio, total
from scripts.dashboards.machine import GPUS, MACHINE
from scripts.dashboards.panel import Dashboard, Kind, Needs, Panel, Query, Row, Step, Word

# A proof asks a model beside the one in service, whose name begins with a dot.
SERVED = 'model!~"[.].*"'
_MODEL = "{{model}}"
_READY = (Word(0, "not served", "red"), Word(1, "served", "green"))
_DONE = rate(of("nv_inference_request_success", SERVED), "model")
_ROWS_A_RUN = ratio(
    rate(of("nv_inference_count", SERVED), "model"),
    rate(of("nv_inference_exec_count", SERVED), "model"),
)
_NO_TEXT = "Of models that generate text see Text generation."
# Each once, on however many Tritons and GPUs it is.
_VERSIONS = f"count by (model, version) ({of('nv_inference_request_success', SERVED)})"


def _mean(what: str) -> str:
    """Seconds of each request, by model; Triton counts microseconds."""
    spent = rate(of(f"nv_inference_{what}_duration_us", SERVED), "model")
    return f"{ratio(spent, _DONE)} / 1e6{UNLESS_TEXT}"


_TRITON = (
    Panel(
        "Requests of each model",
        Kind.STACKED,
        "reqps",
        8,
        "That Triton answered: calls of the gateway, with the texts of several callers each.",
        (Query(_DONE, _MODEL),),
    ),
    Panel(
        "Requests that failed in Triton",
        Kind.LINES,
        "reqps",
        8,
        "By model; callers see engine_failed, or unavailable while nothing serves.",
        (Query(rate(of("nv_inference_request_failure", SERVED), "model"), _MODEL),),
    ),
    Panel(
        "Requests that wait in Triton",
        Kind.LINES,
        "short",
        8,
        "Few by design: what waits, waits in the gateway, where it can be refused or given up.",
        (Query(total(of("nv_inference_pending_request_count", SERVED), "model"), _MODEL),),
    ),
    Panel(
        "Queue of each model",
        Kind.LINES,
        "s",
        8,
        f"A request's mean wait inside Triton. {_NO_TEXT}",
        (Query(_mean("queue"), _MODEL),),
    ),
    Panel(
        "Compute of each model",
        Kind.LINES,
        "s",
        8,
        f"A request's mean time in the engine itself. {_NO_TEXT}",
        (Query(_mean("compute_infer"), _MODEL),),
    ),
    Panel(
        "Input and output of each model",
        Kind.LINES,
        "s",
        8,
        f"A request's mean time for its tensors' way in and out. {_NO_TEXT}",
        (
            Query(_mean("compute_input"), f"{_MODEL} in"),
            Query(_mean("compute_output"), f"{_MODEL} out"),
        ),
    ),
    Panel(
        "Runs of the engine",
        Kind.LINES,
        "ops",
        12,
        f"Batches a second, by model. {_NO_TEXT}",
        (Query(f"{rate(of('nv_inference_exec_count', SERVED), 'model')}{UNLESS_TEXT}", _MODEL),),
    ),
    Panel(
        "Rows a run",
        Kind.LINES,
        "short",
        12,
        f"How many rows the engine computes at once, in the mean. {_NO_TEXT}",
        (Query(f"{_ROWS_A_RUN}{UNLESS_TEXT}", _MODEL),),
    ),
)

_CONTROLLER = (
    Panel(
        "Triton answers",
        Kind.STAT,
        "short",
        6,
        "By container.",
        (Query(f"max by (instance) ({P}engine_triton_ready)", "{{instance}}"),),
        words=(Word(0, "no", "red"), Word(1, "yes", "green")),
    ),
    Panel(
        "Since the last sync",
        Kind.STAT,
        "s",
        6,
        "Of the controller with the control plane. With polls over two minutes red may be normal; "
        "the alert SyncStale knows yours.",
        (Query(age(f"{P}engine_last_sync_timestamp_seconds"), "{{instance}}"),),
        steps=(Step(None, "green"), Step(300, "red")),
    ),
    Panel(
        "Bundles by proof",
        Kind.STAT,
        "short",
        12,
        "How many are in each state, be it on one Triton of several; one that failed is not served "
        "there.",
        (
            Query(
                f"sum by (state) (max by (endpoint, bundle, state) ({P}engine_proof))",
                "{{state}}",
            ),
        ),
        nothing="none",
    ),
    Panel(
        "Endpoints that Triton serves",
        Kind.STATES,
        "short",
        8,
        "Each one's last good version, by container.",
        (
            Query(
                f"max by (endpoint, instance) ({P}engine_ready)",
                "{{endpoint}}, {{instance}}",
            ),
        ),
        words=_READY,
    ),
    Panel(
        "Failed loads",
        Kind.STATES,
        "short",
        8,
        "Whether the newest bundle failed to load, by container. The one before still serves.",
        (
            Query(
                f"max by (endpoint, instance) ({P}engine_load_failed)",
                "{{endpoint}}, {{instance}}",
            ),
        ),
        words=(Word(0, "none", "green"), Word(1, "failed", "red")),
    ),
    Panel(
        "Loaded versions",
        Kind.STACKED,
        "short",
        8,
        "Of each model: two while a new one is loaded before the old one goes, and where a process "
        "was killed: its version's rows stay until Triton ends.",
        (Query(f"count by (model) ({_VERSIONS})", _MODEL),),
    ),
    Panel(
        "What proofs took",
        Kind.BARS,
        "s",
        8,
        "Load and unload included, of those that passed.",
        (
            Query(
                f"max by (endpoint, bundle) ({P}engine_proof_seconds)",
                "{{endpoint}}, bundle {{bundle}}",
            ),
        ),
    ),
    Panel(
        "Largest difference from the reference",
        Kind.BARS,
        "sci",
        8,
        "In the proofs that passed.",
        (
            Query(
                f"max by (endpoint, bundle) ({P}engine_proof_largest_difference)",
                "{{endpoint}}, bundle {{bundle}}",
            ),
        ),
    ),
    Panel(
        "Synced with the control plane",
        Kind.LINES,
        "s",
        8,
        "Seconds since the controller's last sync: a saw whose teeth are its polls.",
        (Query(age(f"{P}engine_last_sync_timestamp_seconds"), "{{instance}}"),),
    ),
)

_TEXT = (
    Panel(
        "Sequences",
        Kind.STACKED,
        "short",
        8,
        "That each step makes a token of, and calls that wait to be let in.",
        (
            Query(total(f"{P}generation_running", "model"), f"{_MODEL} running"),
            Query(total(f"{P}generation_waiting", "model"), f"{_MODEL} waiting"),
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Tokens a second",
        Kind.LINES,
        "short",
        8,
        "Of prompts that were let in, and generated.",
        (
            Query(rate(f"{P}generation_prompt_tokens_total", "model"), f"{_MODEL} prompts"),
            Query(rate(f"{P}generation_tokens_total", "model"), f"{_MODEL} generated"),
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Cache in use",
        Kind.LINES,
        "percentunit",
        8,
        "Of the cache's blocks, and what is reserved of them.",
        tuple(
            Query(
                f"max by (instance, model) ({P}generation_cache_{what})",
                f"{_MODEL}, {{{{instance}}}} {words}",
            )
            for what, words in CACHE
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Built again",
        Kind.STAT,
        "short",
        24,
        "How often in the time that is shown the engine was, after a fault.",
        (Query(f"sum by (model) (increase({P}generation_rebuilt_total[$__range]))", _MODEL),),
        Needs.TEXT_GENERATION,
        (Step(None, "green"), Step(1, "red")),
    ),
)

ENGINES = Dashboard(
    "engines",
    "Transformer serving: engines",
    "Triton and its controller: what models cost there, the machine, loads and proofs.",
    (
        Row("Controller", _CONTROLLER),
        Row("Triton", _TRITON),
        Row("Machine", MACHINE),
        Row("GPU", GPUS),
        Row("Text generation", _TEXT),
    ),
)
