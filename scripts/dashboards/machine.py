"""What Triton tells of the machine that it is on, and of its GPUs."""

from __future__ import annotations

from scripts.dashboards.panel import Kind, Needs, Panel, Query

_GPU = "{{instance}} {{gpu_uuid}}"

MACHINE = (
    Panel(
        "Processors",
        Kind.LINES,
        "percentunit",
        8,
        "Of the whole machine that Triton is on, however many serve there.",
        (Query("max by (instance) (nv_cpu_utilization)", "{{instance}}"),),
    ),
    Panel(
        "Memory",
        Kind.LINES,
        "bytes",
        8,
        "Of the same machine.",
        (
            Query("max by (instance) (nv_cpu_memory_used_bytes)", "{{instance}} used"),
            Query("max by (instance) (nv_cpu_memory_total_bytes)", "{{instance}} there"),
        ),
    ),
    Panel(
        "Pinned memory",
        Kind.LINES,
        "bytes",
        8,
        "Triton's own pool, for the way to and from a GPU.",
        (
            Query("max by (instance) (nv_pinned_memory_pool_used_bytes)", "{{instance}} used"),
            Query("max by (instance) (nv_pinned_memory_pool_total_bytes)", "{{instance}} there"),
        ),
    ),
)

GPUS = (
    Panel(
        "GPU",
        Kind.LINES,
        "percentunit",
        8,
        "How much of the time it computes.",
        (Query("max by (instance, gpu_uuid) (nv_gpu_utilization)", _GPU),),
        Needs.GPU,
    ),
    Panel(
        "GPU memory",
        Kind.LINES,
        "bytes",
        8,
        "What is taken, and what there is.",
        (
            Query("max by (instance, gpu_uuid) (nv_gpu_memory_used_bytes)", f"{_GPU} used"),
            Query("max by (instance, gpu_uuid) (nv_gpu_memory_total_bytes)", f"{_GPU} there"),
        ),
        Needs.GPU,
    ),
    Panel(
        "GPU power",
        Kind.LINES,
        "watt",
        8,
        "What it draws, and may draw.",
        (
            Query("max by (instance, gpu_uuid) (nv_gpu_power_usage)", f"{_GPU} drawn"),
            Query("max by (instance, gpu_uuid) (nv_gpu_power_limit)", f"{_GPU} limit"),
        ),
        Needs.GPU,
    ),
)
