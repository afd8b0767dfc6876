"""Many processes from one command: the stage starts itself again through accelerate's launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from shift_diffusion.config import Runtime


def launch_command(runtime: Runtime, module: str, arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command that runs `module` in `runtime.num_processes` processes of this machine.

    Empty when nothing is to be started: one process is wanted, or torchrun or accelerate (on one host or many) has
    started this one already, which their WORLD_SIZE tells.
    """
    if runtime.num_processes == 1 or "WORLD_SIZE" in environ:
        return []
    threads = runtime.threads or max((os.cpu_count() or 1) // runtime.num_processes, 1)
    options = {
        "num_processes": runtime.num_processes,
        "num_machines": 1,
        "num_cpu_threads_per_process": threads,
        "main_process_port": 0,  # any free one: two stages may train at once
        "mixed_precision": "no",  # the engine's own business
        "dynamo_backend": "no",
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    # --multi_gpu only picks torch's launcher: without an accelerator the processes meet over gloo
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *flags]
    return [*launcher, "--module", module, *arguments]


def start_processes(runtime: Runtime, module: str) -> None:
    """Replaces this process by the launcher of many where `runtime` wants it; else returns."""
    command = launch_command(runtime, module, sys.argv[1:], os.environ)
    if command:
        sys.stdout.flush()
        os.execv(command[0], command)
