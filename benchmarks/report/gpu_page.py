"""The part of docs/gpu.md that `make check-gpu` writes, from the stored steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.report.markdown import table
from benchmarks.servers.encoders import LARGE, MINILM

Found = Mapping[str, Any]
NONE = "Nothing was run yet."
_DONE = "done"
# Of a step's name: with the model whose texts a GPU is busy with.
_LARGE = "-large"
# The desk asks its answers on the processor, whatever the machine has.
ON_CPU = "onnxruntime"
_NOT_COMPARED = (
    "Engine torch is called as it is served. What calls TensorRT and ONNX Runtime here takes new "
    "memory for each call and copies without pinned memory, and in Triton it is their own backends "
    "that call them: one's row says nothing of another's."
)
# Beside the figures: what the engine says is slower than it might be.
REMARKS = "remarks"
# The engine alone that sleeps before each call, and for how long.
PAUSED, PAUSE_S = "raw-paused", 0.002


def text(steps: Sequence[Found], names: Sequence[str]) -> str:
    """`steps` are those that were stored, in the order of `names`, which are all there are."""
    if not steps:
        return NONE
    stored = {step["step"] for step in steps}
    asked: Sequence[str] = [name for name in names if name not in stored]
    parts: list[str] = []
    for group in _groups(steps):
        own = {step["step"] for step in group}
        parts += _of_machine(group, [name for name in names if name in own or name in asked])
        asked = ()
    if stored.issuperset(names) and all(step["state"] == _DONE for step in steps):
        parts.insert(1, "Every step was run.")
    return "\n\n".join(part for part in parts if part)


def _groups(steps: Sequence[Found]) -> Iterator[Sequence[Found]]:
    """Those of one GPU, processor, commit and torch: of any of them figures are others."""
    groups: dict[str, list[Found]] = {}
    for step in steps:
        torch = step["versions"].get("torch")
        key = json.dumps([step["gpu"], step["machine"]["cpu"], step["commit"], torch])
        groups.setdefault(key, []).append(step)
    yield from groups.values()


def _of_machine(steps: Sequence[Found], names: Sequence[str]) -> list[str]:
    """`names` are those of the steps, and of what was run nowhere where this is to say so."""
    by_name = {step["step"]: step for step in steps}
    done = {name: step["values"] for name, step in by_name.items() if step["state"] == _DONE}
    parts = [_where(steps), _missing(by_name, names), _parity(done), _alone(done)]
    for name, values in done.items():
        if "loads" in (values or {}):
            parts.append(_loads(name, values))
            # On a CPU the engine has more threads than its process' one, and no such end.
            parts.append(_ceilings(name, values) if steps[-1]["gpu"] else "")
    parts += [_overload(done.get("overload-torch")), _workers(done.get("workers-torch"))]
    return parts


def _where(steps: Sequence[Found]) -> str:
    last = steps[-1]
    gpu = last["gpu"][0] if last["gpu"] else None
    named = (
        f"{gpu['name']}, driver {gpu['driver']}, compute capability {gpu['capability']}"
        if gpu
        else "**no GPU: what follows is this machine's CPU, and says nothing of a GPU**"
    )
    versions = ", ".join(
        f"{name} {last['versions'][name]}"
        for name in ("python", "torch", "tensorrt", "onnxruntime-gpu", "onnxruntime")
        if name in last["versions"]
    )
    dates = sorted(step["date"] for step in steps)
    some = any(step["step"].endswith(_LARGE) and step["state"] == _DONE for step in steps)
    large = f"; large: {LARGE.title}" if some else ""
    return (
        f"{dates[0]} to {dates[-1]}, commit {last['commit']}: {named}; {last['machine']['cpu']}, "
        f"{last['machine']['cores']} cores; {versions}. Model: {MINILM.title}{large}."
    )


def _missing(by_name: Mapping[str, Found], names: Sequence[str]) -> str:
    rows = []
    for name in names:
        step = by_name.get(name)
        if step is None:
            rows.append([f"`{name}`", "not run", "nobody asked for it"])
        elif step["state"] != _DONE:
            said = "; ".join(step["lacks"]) or str(step["values"])
            rows.append([f"`{step['step']}`", step["state"], said])
    return table(["step", "is", "because"], rows) if rows else ""


def _parity(done: Mapping[str, Any]) -> str:
    rows = []
    for name, found in done.items():
        if not name.startswith("parity-"):
            continue
        large = found.get("model") == LARGE.name
        engine = f"{found['engine']}, large" if large else found["engine"]
        if engine == ON_CPU:
            engine += ", on the CPU"
        if "refused" in found:
            rows.append([engine, found["precision"], f"refused: {found['refused']}", ""])
            continue
        rows.append(
            [
                engine, found["precision"],
                f"{found['difference']:.1e} of {found['tolerance']:.0e}",
                "" if found["cosine"] is None else f"{found['cosine']:.6f}",
            ]
        )  # fmt: skip
    head = ["engine", "precision", "largest difference, of the allowed", "least cosine"]
    return table(head, rows) if rows else ""


def _alone(done: Mapping[str, Any]) -> str:
    found = {name.removeprefix("alone-"): one for name, one in done.items() if "alone-" in name}
    if not found:
        return ""
    calls = list(dict.fromkeys(call for one in found.values() for call in one if call != REMARKS))
    rows = [
        [name.replace("-", " "), *(_call(one.get(call)) for call in calls)]
        for name, one in found.items()
    ]
    said = "".join(_remarks(name.replace("-", " "), one) for name, one in found.items())
    if len({name.partition("-")[0] for name in found}) > 1:
        said += f"\n\n{_NOT_COMPARED}"
    shown = table(["engine", *calls], rows)
    return f"The engine alone, ms a call (texts a second):\n\n{shown}{said}"


def _remarks(of: str, found: Found) -> str:
    return "".join(f"\n\n{of}: {line}." for line in map(_one_line, found.get(REMARKS, ())))


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _call(found: Found | None) -> str:
    return f"{found['mean']:.2f} ({found['rate']:.0f})" if found else "-"


def _loads(name: str, found: Found) -> str:
    rows = []
    for load, peers in found["loads"].items():
        ours, raw = peers.get("gateway") or {}, peers.get("raw-padded") or {}
        share = f"{ours['texts'] / raw['texts']:.2f}" if ours and raw else "-"
        rows.append(
            [
                found["titles"][load],
                *(_figure(ours, key) for key in ("texts", "p50", "p99")),
                _figure(raw, "texts"), _figure(raw, "p50"),
                _figure(peers.get(PAUSED) or {}, "p50"), share,
                *(_figure(ours, f"{part}_us") for part in ("cpu", "triton", "engine", "load")),
                _figure(ours, "texts_a_call"),
            ]
        )  # fmt: skip
    head = ["load", "texts/s", "p50 ms", "p99 ms", "engine alone, texts/s", "its p50 ms",
            f"after pauses of {1e3 * PAUSE_S:g} ms", "share",
            "server µs", "Triton µs", "engine µs", "sender µs", "texts a call"]  # fmt: skip
    failed = "".join(f"\n\n{what}: {why}." for what, why in found["failed"].items())
    failed += _remarks("the engine alone", found)
    what = f"`{name}`, {found['precision']}{_of_workers(found)}"
    waits = ""
    if found.get("workers", 1) > 1:
        waits = f", server µs of all {found['workers']} workers, those that only wait included"
    return f"{what}; µs of processor a request{waits}:\n\n{table(head, rows)}{failed}"


def _ceilings(name: str, found: Found) -> str:
    """What each part of the way of a crowd's load could take, were the others nothing."""
    if not found["loads"]:
        return ""
    load, peers = next(iter(found["loads"].items()))
    ours, raw = peers.get("gateway") or {}, peers.get("raw-padded") or {}
    parts = [
        (f"the gateway's {found.get('workers', 1)} workers", found.get("workers", 1), "cpu_us"),
        ("the engine's process, one thread", 1, "engine_us"),
        ("the sender, one thread", 1, "load_us"),
    ]
    ends = [
        f"{what} at {ours[spent]:.0f} µs: {rate:.0f}, {rate / raw['texts']:.2f} of it"
        for what, threads, spent in parts
        if ours.get(spent) and raw
        for rate in (1e6 * threads / ours[spent],)
    ]
    if not ends:
        return ""
    shown = "\n".join(f"- {one}" for one in ends)
    judge = "" if name.endswith(_LARGE) else f" `{name}{_LARGE}` judges the way."
    return (
        f"{found['titles'][load]}: the engine alone takes {raw['texts']:.0f} texts/s. At what they "
        f"spend here, the parts of the way to it could each take no more than\n\n{shown}\n\n"
        f"and so this load shows no share above the least of these.{judge}"
    )


def _of_workers(found: Found) -> str:
    return f", {found['workers']} gateway workers" if "workers" in found else ""


def _figure(found: Found, key: str) -> str:
    value = found.get(key)
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _overload(found: Found | None) -> str:
    """Of an earlier commit it says neither the model nor the sender's share without overload."""
    if not found:
        return ""
    rows = [
        [
            row["deadline"], f"{row['capacity']:.0f}", f"{row['offered']:.0f}",
            f"{row['least']:.2f}", "-" if row["p99"] is None else f"{row['p99']:.0f}",
            _figure(row, "after_ms"),
            *(f"{row[key]:.2f}" if key in row else "-"
              for key in ("calm_generator_cpu", "generator_cpu")),
        ]
        for row in found["rows"]
    ]  # fmt: skip
    head = ["deadline", "capacity, texts/s", "offered", "least of it answered", "p99 ms",
            "alone after it, ms", "sender at capacity, of a core", "in overload"]  # fmt: skip
    what = f" before {found['model']}, {found['text']} a request" if "model" in found else ""
    shown = f"Overload, engine torch{what}{_of_workers(found)}:\n\n{table(head, rows)}"
    return shown + _remarks("overload", found)


def _workers(found: Found | None) -> str:
    if not found:
        return ""
    rows = [
        [count, f"{row['per_s']:.0f}", f"{row['server']:.2f}", f"{row['generator']:.2f}"]
        for count, row in found["rows"].items()
    ]
    head = ["workers", "texts/s", "server, of all cores", "sender, of its threads"]
    shown = f"Gateway workers before one engine, {found['cores']} cores:\n\n" + table(head, rows)
    return shown + _remarks("workers", found)
