"""What the machine is: card, driver, tools, Python."""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import driver
import pytorch
from environment import card_in_use, list_cards, prepare
from part import OUT_OF_TIME, OutOfTime, Stage

SMI_FIELDS = (
    "name,driver_version,memory.total,memory.used,power.limit,clocks.max.sm,clocks.max.mem,"
    "temperature.gpu,compute_mode,persistence_mode,ecc.mode.current,mig.mode.current"
)


def run(stage: Stage) -> None:
    """Gathers the facts; an error where there is no GPU that can be used."""
    started = time.monotonic()
    gather(stage, "environment", prepare)
    pytorch.begin(stage)
    device = stage.run([stage.program("setrank-gpu-check"), "device"], 40)
    gather(stage, "device", lambda: json.loads(device.out) if device.ok else None)
    gather(stage, "compute_mode", lambda: compute_mode(stage))
    gather(stage, "libcuda", libcuda)
    gather(stage, "nvidia_smi", lambda: nvidia_smi(stage))
    gather(stage, "ldd", lambda: missing_libraries(stage))
    gather(stage, "python", lambda: sys.version.split()[0])
    gather(stage, "tools", lambda: {name: version(stage, name) for name in ("ncu", "compute-sanitizer", "nsys")})
    gather(stage, "host", host)
    seconds = time.monotonic() - started
    found = stage.facts["device"]
    if isinstance(found, dict):
        stage.tell("machine", "passed", seconds, f"{found['name']}, compute capability {found['compute_capability']}")
    else:
        stage.facts["device"] = None
        stage.tell("machine", "error", seconds, found or device.says())


def gather(stage: Stage, name: str, ask: Callable[[], object]) -> None:
    """One fact, or in words why it is not known: none is worth losing the others."""
    try:
        stage.facts[name] = ask()
    except OutOfTime:
        stage.facts[name] = OUT_OF_TIME
    except Exception as error:
        stage.logs.append(traceback.format_exc())
        stage.facts[name] = f"{type(error).__name__}: {error}"


def compute_mode(stage: Stage) -> str:
    """Who may use the card: in some modes one process at a time."""
    return driver.compute_mode(stage.run([sys.executable, "-c", driver.LOAD + driver.MODE], 20))


def host() -> dict:
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }


def libcuda() -> dict:
    """Where the driver's library may lie, and what the loader would take."""
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [Path(folder) for folder in driver.FOLDERS]
    found = [str(file) for folder in folders for file in sorted(folder.glob("libcuda.so*"))]
    version_file = Path("/proc/driver/nvidia/version")
    return {
        "files": found,
        "loader": ctypes.util.find_library("cuda"),
        "kernel_module": version_file.read_text().splitlines()[0] if version_file.exists() else None,
    }


def nvidia_smi(stage: Stage) -> dict | str:
    """The card as nvidia-smi describes it, or why it does not."""
    if not shutil.which("nvidia-smi"):
        return "not on PATH"
    card = card_in_use(list_cards())
    if not card:
        return "CUDA_VISIBLE_DEVICES is empty, which hides all cards"
    asked = stage.run(["nvidia-smi", "-i", card, f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader"], 10)
    if not asked.ok:
        return asked.says()
    if not asked.out.strip():
        return "it prints nothing"
    values = [value.strip() for value in asked.out.splitlines()[0].split(",")]
    return dict(zip(SMI_FIELDS.split(","), values))


def missing_libraries(stage: Stage) -> str:
    """What ldd does not find for the programs."""
    asked = stage.run(["ldd", stage.program("setrank-gpu-check")], 10)
    missing = [line.strip() for line in (asked.out + asked.err).splitlines() if "not found" in line]
    return "; ".join(missing) or "all found"


def version(stage: Stage, tool: str) -> str | None:
    """A tool's own words on its version; None where it is not on PATH."""
    if not shutil.which(tool):
        return None
    asked = stage.run([tool, "--version"], 10)
    lines = [line for line in asked.out.splitlines() if "ersion" in line]
    return lines[0].strip() if lines else asked.says()


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
