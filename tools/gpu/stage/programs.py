"""The programs to be run, from the archive that they were packed into."""

from __future__ import annotations

import os
from pathlib import Path

from process import run

NAME = "setrank-gpu-check"
SECONDS = 60.0


class NoPrograms(Exception):
    """There are none, or they cannot be run."""


def unpack(folder: Path, work: Path) -> Path:
    """The folder of the programs: the archive's, anew each time, so that none is older; or else this one."""
    archive = folder / "programs.tar.gz"
    if archive.exists():
        done = run(["tar", "-xzf", str(archive), "-C", str(work)], SECONDS)
        if not done.ok:
            raise NoPrograms(f"cannot unpack {archive} into {work}: {done.err.strip() or done.says()}")
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
