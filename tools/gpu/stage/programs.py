"""The programs to be run, from the archive that they were packed into."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

NAME = "setrank-gpu-check"


class NoPrograms(Exception):
    """There are none, or they cannot be run."""


def unpack(folder: Path, work: Path) -> Path:
    """The folder of the programs: the archive's, anew each time, so that none is older; or else this one."""
    archive = folder / "programs.tar.gz"
    if archive.exists():
        done = subprocess.run(
            ["tar", "-xzf", archive, "-C", work], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise NoPrograms(f"cannot unpack {archive} into {work}: {done.stderr.strip()}")
        if not (work / NAME).exists():
            raise NoPrograms(f"{archive} has no program {NAME}: run tools/gpu/pack.sh again")
        folder = work
    if not (folder / NAME).exists():
        raise NoPrograms(
            f"{folder} has no program {NAME}: run tools/gpu/pack.sh, and the check.sh in the folder that it names"
        )
    if not os.access(folder / NAME, os.X_OK):
        raise NoPrograms(f"no program can be run in {folder}: set TMPDIR to a folder where that is allowed")
    return folder
