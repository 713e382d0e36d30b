"""One endpoint, chosen at the top: is it right, is it well, what does it generate."""

from __future__ import annotations

from scripts.dashboards.expressions import CACHE, TEXT, P, of, quantiles, rate, ratio, total
from scripts.dashboards.panel import (
    Dashboard,
    Kind,
    Mark,
    Needs,
    Panel,
    Query,
    Row,
    Step,
    Variable,
    Word,
)
from scripts.dashboards.traffic import answers, work

CHOSEN = 'endpoint="$endpoint"'
# What Triton calls it.
MODEL = 'model="$model"'
_FAILED = of(f"{P}engine_load_failed", CHOSEN)
_GOLDEN = of(f"{P}gateway_golden_ok", CHOSEN)
_INFO = of(f"{P}gateway_bundle_info", CHOSEN)
_BUNDLES = f"count by (bundle) ({_INFO})"
# Others answered a minute before, or this one has not for ten: figures that were away for less than
# that are no change, and after more, as a night's `down`, what answers is marked.
_OTHER_BUNDLE = (
    f"{_BUNDLES} unless count by (bundle) ({_INFO} offset 1m) and on () count({_INFO} offset 1m)\n"
    f"or {_BUNDLES} unless count by (bundle) (last_over_time({_INFO}[10m] offset 1m))"
)
_RIGHT = (Word(0, "wrong or no answer", "red"), Word(1, "well", "green"))
_SERVED = (Word(0, "not served", "red"), Word(1, "served", "green"))
# In a model's name stands _ where the endpoint's has a slash: before its version, and in a name
# that was added by hand. Each step replaces one.
_SLASHES = 4
_READY = f"max by (endpoint) ({of(f'{P}engine_ready', CHOSEN)})"


def _with_model() -> str:
    rows = f'label_replace({_READY}, "model", "$1", "endpoint", "(.+)")'
    for _ in range(_SLASHES):
        rows = f'label_replace({rows}, "model", "${{1}}_${{2}}", "model", "(.+)/(.+)")'
    return rows


_VARIABLES = (
    Variable(
        "endpoint",
        f'label_values({{__name__=~"{P}gateway_golden_ok|{P}request_duration_seconds_count",'
        'endpoint!=""}, endpoint)',
    ),
    Variable(
        "model",
        f"query_result({_with_model()})",
        hidden=True,
        pattern='/model="([^"]+)"/',
    ),
)


def _inside_triton(what: str, legend: str) -> Query:
    spent = rate(of(f"nv_inference_{what}_duration_us", MODEL))
    mean = f"{ratio(spent, rate(of('nv_inference_request_success', MODEL)))} / 1e6"
    return Query(f"{mean} unless on () {of(TEXT, MODEL)}", legend)


_RIGHT_NOW = (
    Panel(
        "Golden request",
        Kind.STAT,
        "short",
        5,
        "Each worker's last answer to the bundle's own request; the worst of them. Not compared "
        "while an older bundle answers: see Failed loads.",
        (Query(f"min ({_GOLDEN})"),),
        words=_RIGHT,
    ),
    Panel(
        "On Triton",
        Kind.STAT,
        "short",
        4,
        "Whether a Triton serves its last good version.",
        (Query(f"max ({of(f'{P}engine_ready', CHOSEN)})"),),
        words=_SERVED,
    ),
    Panel(
        "Proof",
        Kind.NAMES,
        "short",
        5,
        "Whether its engine was held to the bundle's parity set on the machine that serves it.",
        (
            Query(
                f"max by (state, bundle) ({of(f'{P}engine_proof', CHOSEN)}) == 1",
                "{{state}}, bundle {{bundle}}",
            ),
        ),
        nothing="none",
    ),
    Panel(
        "Failed loads",
        Kind.STAT,
        "short",
        5,
        "On how many Tritons the bundle that is asked for could not be loaded at the last try. "
        "Above 0: restart, roll and scale nothing, as new workers answer 503. "
        "`transformer-serving rollback NAME` mends it.",
        (Query(f"sum by (endpoint) (max by (endpoint, instance) ({_FAILED}))", "{{endpoint}}"),),
        steps=(Step(None, "green"), Step(1, "red")),
    ),
    Panel(
        "Bundle in service",
        Kind.NAMES,
        "short",
        5,
        "What answered the workers' last golden requests; during a change there are two.",
        (
            Query(
                f"count by (bundle, task) ({of(f'{P}gateway_bundle_info', CHOSEN)})",
                "{{bundle}}, {{task}}",
            ),
        ),
    ),
    Panel(
        "Golden request over time",
        Kind.STATES,
        "short",
        12,
        "By container; the worst of its workers.",
        (Query(f"min by (instance) ({_GOLDEN})", "{{instance}}"),),
        words=_RIGHT,
    ),
    Panel(
        "Workers on each bundle",
        Kind.STACKED,
        "short",
        12,
        "Two bundles for longer than a change takes: a worker is behind.",
        (Query(_BUNDLES, "{{bundle}}"),),
    ),
)

_ENGINE = (
    Panel(
        "Inside Triton",
        Kind.STACKED,
        "s",
        24,
        "The mean of a call's parts, added up. Several requests may share a call. Empty where text "
        "is generated: Triton has the time in which such a call is handed over, and no more.",
        (
            _inside_triton("queue", "queue"),
            _inside_triton("compute_input", "input"),
            _inside_triton("compute_infer", "compute"),
            _inside_triton("compute_output", "output"),
        ),
    ),
)

_TEXT = (
    Panel(
        "Time to the first token",
        Kind.LINES,
        "s",
        8,
        "From a request's coming.",
        quantiles(f"{P}first_token_seconds", CHOSEN),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Time between tokens",
        Kind.LINES,
        "s",
        8,
        "Between a token and the one before it; tokens of one message share its time.",
        quantiles(f"{P}token_seconds", CHOSEN),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Tokens generated a second",
        Kind.LINES,
        "short",
        8,
        "As they come, of every sequence.",
        (Query(rate(of(f"{P}generated_tokens_total", CHOSEN)), "tokens"),),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Sequences that run, at the gateway",
        Kind.LINES,
        "short",
        8,
        "And how many may run at all the gateway's endpoints together.",
        (
            Query(total(of(f"{P}running_streams", CHOSEN)), "running"),
            Query(total(f"{P}running_streams_limit"), "limit"),
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Sequences in the engine",
        Kind.LINES,
        "short",
        8,
        "Those that each step makes a token of, and calls that wait to be let in.",
        (
            Query(total(of(f"{P}generation_running", MODEL)), "running"),
            Query(total(of(f"{P}generation_waiting", MODEL)), "waiting"),
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Cache in use",
        Kind.LINES,
        "percentunit",
        8,
        "Of the cache's blocks, and what is reserved of them. Where all are, calls wait.",
        tuple(
            Query(
                f"max by (instance) ({of(f'{P}generation_cache_{what}', MODEL)})",
                f"{{{{instance}}}} {words}",
            )
            for what, words in CACHE
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "How sequences end in the engine",
        Kind.STACKED,
        "short",
        12,
        "A second: whole, as the caller left, refused as too many waited, by a fault.",
        tuple(
            Query(rate(of(f"{P}generation_{how}_total", MODEL)), how)
            for how in ("finished", "cancelled", "refused", "failed")
        ),
        Needs.TEXT_GENERATION,
    ),
    Panel(
        "Sequences cut short",
        Kind.LINES,
        "short",
        12,
        "A second, by reason: disconnect, as the caller left; else the code of an error.",
        (Query(rate(of(f"{P}cut_sequences_total", CHOSEN), "reason"), "{{reason}}"),),
        Needs.TEXT_GENERATION,
    ),
)

ENDPOINT = Dashboard(
    "endpoint",
    "Transformer serving: endpoint",
    "One endpoint: is it right, is it well, what does it generate.",
    (
        Row("Is it right", _RIGHT_NOW),
        Row("Requests", answers(CHOSEN)),
        Row("Work", work(CHOSEN)),
        Row("Engine", _ENGINE),
        Row("Text generation", _TEXT),
    ),
    _VARIABLES,
    (
        Mark(
            "Bundle",
            _OTHER_BUNDLE,
            "bundle {{bundle}} answers",
        ),
    ),
)
