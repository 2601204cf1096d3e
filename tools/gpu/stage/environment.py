"""What programs find on this machine, put right where it is known to be wrong; each change is said."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

import driver
from process import run

TOOLS = (
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/bin",
    "/usr/local/cuda/compute-sanitizer",
    "/opt/nvidia/nsight-compute/*",
    "/opt/nvidia/nsight-systems/*/bin",
)


def prepare() -> list[str]:
    """Changes this process's environment, which all programs get, and says how."""
    return [*leave_stubs_out(), *add_driver(), *add_tools(), *take_one_card()]


def leave_stubs_out() -> list[str]:
    """The toolkit's stubs, which compilers link with, are no driver."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    stubs = [folder for folder in folders if "stubs" in Path(folder).parts]
    if stubs:
        os.environ["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder not in stubs)
    return [f"left out of LD_LIBRARY_PATH: {folder}, whose libcuda.so is no driver" for folder in stubs]


def add_driver() -> list[str]:
    if driver.loads():
        return []
    folder = next((folder for folder in driver.FOLDERS if Path(folder, "libcuda.so.1").exists()), None)
    if folder is None:
        return []
    append("LD_LIBRARY_PATH", folder)
    how = "is" if driver.loads() else "is, but it does not load"
    return [f"added to LD_LIBRARY_PATH: {folder}, where the driver's library {how}"]


def add_tools() -> list[str]:
    """Adds the folders of tools that are not on PATH, the newest first."""
    there = os.environ.get("PATH", "").split(":")
    found = [folder for pattern in TOOLS for folder in sorted(glob.glob(pattern), key=by_version, reverse=True)]
    added = [folder for folder in found if folder not in there]
    for folder in added:
        append("PATH", folder)
    return [f"added to PATH: {folder}" for folder in added]


def by_version(path: str) -> list[int]:
    return [int(number) for number in Path(path).name.replace("-", ".").split(".") if number.isdigit()]


def append(variable: str, folder: str) -> None:
    os.environ[variable] = ":".join(part for part in (os.environ.get(variable), folder) if part)


def take_one_card() -> list[str]:
    """Of several cards the first alone is shown to programs, in nvidia-smi's order."""
    cards = [line for line in list_cards().splitlines() if line.startswith("GPU ")]
    if len(cards) < 2 or "CUDA_VISIBLE_DEVICES" in os.environ:
        return []
    os.environ.update({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    return [f"of {len(cards)} cards the first is used: set CUDA_VISIBLE_DEVICES for another"]


def list_cards() -> str:
    """The cards and their slices, one a line, as nvidia-smi lists them."""
    return run(["nvidia-smi", "-L"], 10).out if shutil.which("nvidia-smi") else ""


def card_in_use(listed: str) -> str:
    """What nvidia-smi calls the first card that programs see: a slice's is the one that it is listed under."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    card = visible
    if visible and not visible.isdigit():
        for line in listed.splitlines():
            if line.startswith("GPU "):
                card = line[len("GPU ") : line.index(":")]
            if visible in line:
                return card
    return visible
