"""What the machine does meanwhile, under the names of MLflow's own system metrics, so that its tab shows them."""

from __future__ import annotations

import sys

import psutil

INTERVAL_S = 10.0


def system_metrics() -> dict[str, float]:
    """CPU and memory of machine and process (megabytes, percent); of the GPUs too where torch uses them."""
    memory, process = psutil.virtual_memory(), psutil.Process()
    values = {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / 1e6,
        "system/system_memory_usage_percentage": memory.percent,
        "system/process_memory_megabytes": process.memory_info().rss / 1e6,
    }
    return values | _gpu_metrics()


def _gpu_metrics() -> dict[str, float]:
    torch = sys.modules.get("torch")  # asking torch to load for this would cost a light stage seconds
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return {}
    values = {}
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        values[f"system/gpu_{index}_memory_usage_megabytes"] = (total - free) / 1e6
        values[f"system/gpu_{index}_memory_usage_percentage"] = 100 * (total - free) / total
    return values
