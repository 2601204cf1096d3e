"""What the machine is: card, driver, tools, Python."""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from part import Stage

SMI_FIELDS = (
    "name,driver_version,memory.total,memory.used,power.limit,clocks.max.sm,clocks.max.mem,"
    "temperature.gpu,persistence_mode,ecc.mode.current,mig.mode.current"
)
TORCH = (
    "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda,"
    "'available': torch.cuda.is_available()}))"
)


def run(stage: Stage) -> None:
    """Gathers the facts; an error where there is no GPU that can be used."""
    started = time.monotonic()
    device = stage.run([stage.program("setrank-gpu-check"), "device"], 40)
    facts = stage.facts
    facts["device"] = json.loads(device.out) if device.ok else None
    facts["libcuda"] = libcuda()
    facts["nvidia_smi"] = nvidia_smi(stage)
    facts["ldd"] = missing_libraries(stage)
    facts["python"] = sys.version.split()[0]
    facts["torch"] = torch(stage)
    facts["tools"] = {name: version(stage, name) for name in ("ncu", "compute-sanitizer", "nsys")}
    facts["host"] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }
    seconds = time.monotonic() - started
    if device.ok:
        found = facts["device"]
        stage.tell("machine", "passed", seconds, f"{found['name']}, compute capability {found['compute_capability']}")
    else:
        stage.tell("machine", "error", seconds, device.says())


def libcuda() -> dict:
    """Where the driver's library may lie, and what the loader would take."""
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib/wsl/lib"), Path("/usr/local/nvidia/lib64")]
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
    asked = stage.run(["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader"], 20)
    if not asked.ok:
        return asked.says()
    values = [value.strip() for value in asked.out.splitlines()[0].split(",")]
    return dict(zip(SMI_FIELDS.split(","), values))


def missing_libraries(stage: Stage) -> str:
    """What ldd does not find for the programs."""
    asked = stage.run(["ldd", stage.program("setrank-gpu-check")], 10)
    missing = [line.strip() for line in (asked.out + asked.err).splitlines() if "not found" in line]
    return "; ".join(missing) or "all found"


def torch(stage: Stage) -> dict | str:
    """PyTorch's version and whether it sees the card, or why not."""
    asked = stage.run([sys.executable, "-c", TORCH], 60)
    return json.loads(asked.out.splitlines()[-1]) if asked.ok else asked.says()


def version(stage: Stage, tool: str) -> str | None:
    """A tool's own words on its version; None where it is not on PATH."""
    if not shutil.which(tool):
        return None
    asked = stage.run([tool, "--version"], 20)
    lines = [line for line in asked.out.splitlines() if "ersion" in line]
    return lines[0].strip() if lines else asked.says()


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
