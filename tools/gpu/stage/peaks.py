"""What the card reaches in a product of matrices and in a copy: setrank's and PyTorch's."""

from __future__ import annotations

import json
import sys
import time

import pytorch
from bench import bench
from part import Stage

SECONDS = 30.0
# for what is being imported since the stage began
WAITED = 20.0


def run(stage: Stage) -> None:
    """Measures both, as facts for the parts that follow."""
    started = time.monotonic()
    finished, found = bench(stage, "infer", "--sizes 40 --sets 1".split())
    if found is None:
        stage.tell("peaks", "error", finished.seconds, finished.says())
        return
    ours = {"peak_gflops": found["peak_gflops"], "copy_gbytes": found["gpu"]["copy_bytes_per_s"] / 1e9}
    rates = stage.facts["rates"] = {"setrank": ours}
    rates["torch"] = of_torch(stage)
    message = "; ".join(f"{name}: {shown(of)}" for name, of in rates.items())
    stage.tell("peaks", "passed", time.monotonic() - started, message)


def of_torch(stage: Stage) -> dict | str:
    """PyTorch's rates, or why there are none."""
    why_not = pytorch.why_not(pytorch.known(stage, min(WAITED, stage.left())))
    if why_not is not None:
        return why_not
    finished = stage.run([sys.executable, str(stage.folder / "peers" / "peaks_torch.py")], SECONDS)
    lines = [line for line in finished.out.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if finished.ok and lines else finished.says()


def shown(rates: dict | str) -> str:
    if isinstance(rates, str):
        return rates
    return f"P {rates['peak_gflops'] / 1e3:.4g} TFLOP/s, BW {rates['copy_gbytes']:.4g} GB/s"


def best(stage: Stage) -> float | None:
    """The peak by which floors are computed, in 10^9 operations a second; without PyTorch, bench measures its own."""
    rates = stage.facts.get("rates", {})
    if not isinstance(rates.get("torch"), dict):
        return None
    return max(of["peak_gflops"] for of in rates.values())
