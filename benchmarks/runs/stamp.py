"""What a table says of the run that it is made from: its date, its commit, machine and versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.runs import busy_cores, fixed_loop

_NAMED = ("clearml-serving", "openvino", "onnxruntime", "torch", "granian", "uvicorn")


def surroundings(values: Mapping[str, Any]) -> str:
    """Of a stored run, to be gone on with."""
    machine, versions = values["machine"], values["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in _NAMED if name in versions)
    about_it = (
        f"load {machine['load_before']} before",
        busy_cores.told(machine.get("busy_before")),
        fixed_loop.told(machine.get("loop_ms", ())),
    )
    return (
        f"{values['date']}, commit {values['commit']}; {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['memory_gib']:.0f} GiB ({_features(machine)}); Python "
        f"{versions['python']}, tritonserver {values['triton']}, {named}"
        f"{_environments(values.get('environments', {}))}; "
        f"{', '.join(one for one in about_it if one)}"
    )


def processor(machine: Mapping[str, Any]) -> str:
    """Its name, and what decides which instructions the engines take."""
    return f"{machine['cpu']} ({_features(machine)})"


def _features(machine: Mapping[str, Any]) -> str:
    return ", ".join(machine["features"]) or "none of AVX2, AVX-512, AMX"


def _environments(found: Mapping[str, Mapping[str, str]]) -> str:
    """What runs in an environment of its own has versions of its own; older runs store none."""
    each = (
        f"{name} ({', '.join(f'{package} {version}' for package, version in versions.items())})"
        for name, versions in sorted(found.items())
        if versions
    )
    said = ", ".join(each)
    return f"; in environments of their own {said}" if said else ""
