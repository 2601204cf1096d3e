"""What the driver's library says, asked by a process of its own: it may be broken."""

from __future__ import annotations

import sys

from process import Finished, run

# where a container's tools put it without telling the loader
FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib64-nvidia",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
)
LOAD = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    cuda = ctypes.CDLL("libcuda.so")
"""
# CU_DEVICE_ATTRIBUTE_COMPUTE_MODE is 20; the first device is 0; needs no context
MODE = """
mode = ctypes.c_int(-1)
print(cuda.cuInit(0) or cuda.cuDeviceGetAttribute(ctypes.byref(mode), 20, 0), mode.value)
"""
MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}


def loads() -> bool:
    """Whether the loader finds the library."""
    return run([sys.executable, "-c", LOAD], 20).ok


def compute_mode(asked: Finished) -> str:
    """Who may use the card, of what `MODE` printed."""
    status, _, mode = asked.out.strip().partition(" ")
    if not asked.ok or status != "0":
        return "unknown"
    return MODES.get(int(mode), f"mode {mode}")
