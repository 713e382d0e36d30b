"""Counters and histograms of all workers as lines of the page, from the files that they keep.

prometheus_client parses and keeps an object for every number of every file, which for many
endpoints and workers is most of what a scrape costs. Here numbers are added up by their key as it
stands in the files, and what a key means is remembered.

What an endpoint has not answered yet is 0: Prometheus takes a counter's first value for no growth,
so that else the first faults, as many as came between two scrapes, would be in no rate. These rows
are made for the page alone: no worker's file has them, and no request pays for them.

Tested by tests/gateway/test_metrics.py and tests/gateway/test_counted_rows.py.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import NamedTuple

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from transformer_serving.contract.errors import FAULTS, KINDS
from transformer_serving.contract.worker.durations import HELP, LABELS, NAME, OK
from transformer_serving.gateway.figures.exemplars import LIMITS, Bucket

COUNTER, HISTOGRAM = "counter", "histogram"
REFUSED = "transformer_serving_gateway_refused"
REFUSED_HELP = "Requests that the gateway refused."
REFUSED_LABELS = ("endpoint", "code")
# Keys of endpoints come and go with the configuration; up to so many stay remembered.
_REMEMBERED = 1 << 16
# The end of a bucket's line, by its other labels and its bound as they are written.
Suffixes = Mapping[tuple[str, str], str]
# The names of endpoints that are shown; None: all.
Known = Collection[str] | None
# The faults for which the gateway itself refuses: too many bytes of bodies, and an endpoint whose
# code has not come; of no endpoint's requests another protocol's question whether one is ready.
_REFUSALS = ("overloaded", "unavailable")
_ANSWERS = {OK: "200", **{code: str(KINDS[code].status) for code in FAULTS}}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


class _Meaning(NamedTuple):
    """What a file's key says; `bound` is a bucket's, whose `labels` are those without it."""

    family: str
    help: str
    name: str
    labels: str
    endpoint: str | None
    bound: float | None

    def head(self, kind: str, *, is_openmetrics: bool) -> str:
        """OpenMetrics names the family, Prometheus's own form the rows."""
        escapes = _ESCAPES if is_openmetrics else _HELP_ESCAPES
        ending = "_total" if kind == COUNTER and not is_openmetrics else ""
        name = f"{self.family}{ending}"
        return f"# HELP {name} {self.help.translate(escapes)}\n# TYPE {name} {kind}\n"


class _Meanings(dict[str, _Meaning]):
    """Each key is read once, however many there are: a page asks for all of them, so that of a
    cache that is too small by one key none would be left for the next page.
    """

    def __missing__(self, key: str) -> _Meaning:
        self[key] = meaning = _meaning(key)
        return meaning

    def forget_others(self, *used: Mapping[str, float]) -> None:
        """Where most are no longer used; pages of some endpoints alone use a part of them."""
        if len(self) <= max(_REMEMBERED, 2 * sum(map(len, used))):
            return
        kept = {key: self[key] for numbers in used for key in numbers}
        self.clear()
        self.update(kept)


_meanings = _Meanings()


def sums(paths: Iterable[Path]) -> dict[str, float]:
    """The numbers of several files of one kind, added up by their keys."""
    found: dict[str, float] = defaultdict(float)
    for path in paths:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path)):
            found[key.rstrip()] += value
    return found


def endpoints_of(*numbers: Mapping[str, float]) -> set[str]:
    """Those that the keys name; '' is nobody."""
    return {_meanings[key].endpoint or "" for counted in numbers for key in counted}


def without(numbers: Mapping[str, float], endpoints: Collection[str]) -> dict[str, float]:
    return {
        key: value for key, value in numbers.items() if _meanings[key].endpoint not in endpoints
    }


def counted_page(
    counters: Mapping[str, float], histograms: Mapping[str, float], known: Known,
    exemplars: Mapping[Bucket, Exemplar] | None = None, *, alone: bool = False,
) -> str:  # fmt: skip
    """Prometheus's text of both; of endpoints that are known, all rows that may alert.

    With exemplars, of NAME's buckets, it is the form of OpenMetrics. `alone`: of these endpoints
    only.
    """
    names = known or ()
    traced = None if exemplars is None else dict(map(_suffix, exemplars.items()))
    all_counters = {**_zeros(_refusal_keys, ("", *names) if names else ()), **counters}
    all_histograms = {**_zeros(_answer_keys, names), **histograms}
    text = "".join(
        line
        for kind, numbers in ((COUNTER, all_counters), (HISTOGRAM, all_histograms))
        for line in _lines(kind, numbers, traced, lambda name: is_shown(name, known, alone=alone))
    )
    _meanings.forget_others(all_counters, all_histograms)
    return text


def is_shown(endpoint: str | None, known: Known, *, alone: bool) -> bool:
    """Whether a row of that endpoint, or of none, is on a page of the known ones."""
    if not endpoint:
        return not alone
    return known is None or endpoint in known


def _lines(
    kind: str, numbers: Mapping[str, float], traced: Suffixes | None,
    shown: Callable[[str | None], bool],
) -> Iterator[str]:  # fmt: skip
    """Rows of one name and labels are one, though two releases word its help otherwise."""
    heads: dict[str, str] = {}
    plain: dict[str, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    buckets: dict[str, dict[str, dict[float, float]]] = defaultdict(_counts)
    for key, value in numbers.items():
        one = _meanings[key]
        if not shown(one.endpoint):
            continue
        if one.family not in heads:
            heads[one.family] = one.head(kind, is_openmetrics=traced is not None)
        if one.bound is None:
            plain[one.family][one.name, one.labels] += value
        else:
            buckets[one.family][one.labels][one.bound] += value
    for family, head in heads.items():
        yield head
        suffixes = traced if traced and family == NAME else {}
        for labels, values in buckets[family].items():
            yield from _histogram(family, labels, values, suffixes)
            # OpenMetrics wants all of one row of labels together.
            of_it = f"{family}_sum"
            yield _line(of_it, labels, plain[family].pop((of_it, labels), 0.0))
        for (name, labels), value in plain[family].items():
            yield _line(name, labels, value)


def _counts() -> dict[str, dict[float, float]]:
    return defaultdict(lambda: defaultdict(float))


def _histogram(
    family: str, labels: str, values: Mapping[float, float], suffixes: Suffixes
) -> Iterator[str]:
    """Files have each bucket's own number, the page that of all below its bound."""
    total, before = 0.0, f"{labels}," if labels else ""
    for bound in sorted(values):
        total += values[bound]
        le = floatToGoString(bound)
        suffix = suffixes.get((labels, le), "")
        yield _line(f"{family}_bucket", f'{before}le="{le}"', total, suffix)
    yield _line(f"{family}_count", labels, total)


def _line(name: str, labels: str, value: float, suffix: str = "") -> str:
    shown = f"{{{labels}}}" if labels else ""
    return f"{name}{shown} {floatToGoString(value)}{suffix}\n"


def _suffix(row: tuple[Bucket, Exemplar]) -> tuple[tuple[str, str], str]:
    """A bucket as `_histogram` finds it, and the end of its line."""
    (endpoint, status, code, le), exemplar = row
    at = "" if exemplar.timestamp is None else f" {float(exemplar.timestamp):.3f}"
    value = floatToGoString(exemplar.value)
    labels = _shown({"endpoint": endpoint, "status": status, "code": code})
    return (labels, le), f" # {{{_shown(exemplar.labels)}}} {value}{at}"


def _shown(labels: Mapping[str, str]) -> str:
    return ",".join(
        f'{label}="{value.translate(_ESCAPES)}"' for label, value in sorted(labels.items())
    )


def _meaning(key: str) -> _Meaning:
    family, name, labels, text = json.loads(key)
    bound = labels.pop("le", None)
    # The same few words stand in very many keys.
    return _Meaning(
        intern(family), intern(text), intern(name), _shown(labels), labels.get("endpoint"),
        None if bound is None else float(bound),
    )  # fmt: skip


def _zeros(keys: Callable[[str], tuple[str, ...]], endpoints: Iterable[str]) -> dict[str, float]:
    return {key: 0.0 for endpoint in endpoints for key in keys(endpoint)}


@lru_cache(maxsize=1024)
def _refusal_keys(endpoint: str) -> tuple[str, ...]:
    return tuple(
        mmap_key(REFUSED, f"{REFUSED}_total", [*REFUSED_LABELS], [endpoint, code], REFUSED_HELP)
        for code in _REFUSALS
    )


@lru_cache(maxsize=1024)
def _answer_keys(endpoint: str) -> tuple[str, ...]:
    """Of a histogram's row for each code as its files would have it."""
    keys = []
    for code, status in _ANSWERS.items():
        values = [endpoint, status, code]
        keys += [
            mmap_key(NAME, f"{NAME}_bucket", [*LABELS, "le"], [*values, le], HELP) for le in LIMITS
        ]
        keys.append(mmap_key(NAME, f"{NAME}_sum", [*LABELS], values, HELP))
    return tuple(keys)
