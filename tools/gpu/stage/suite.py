"""Tests of the whole model on the device, one a process and several at a time; and the check of all kernels."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from checks import at_a_time
from part import OUT_OF_TIME, OutOfTime, Stage
from process import panic

# the tests that take the machine's own driver if asked to: `on_gpu` in tests/kernels/device.rs
TESTS = ["host::arenas_are", "host::parts_are", "host::pinned_memory", "graphs::graphs_change", "model::"]
DRIVER = {"SETRANK_TEST_DRIVER": "real"}
# on an emulator these take long
SLOW = ("graphs::", "model::gradients_are_right_at_full_size", "model::training::twenty")
SECONDS = 60.0


def run(stage: Stage) -> None:
    """Runs the suite."""
    kernels(stage)
    listed = stage.run([stage.program("kernels"), "--list", *TESTS], 10)
    if not listed.ok:
        stage.tell("suite", "error", listed.seconds, f"the list of tests: {listed.says()}")
        return
    names = [line[: -len(": test")] for line in listed.out.splitlines() if line.endswith(": test")]
    for tests in TESTS:
        if not any(name.startswith(tests) for name in names):
            stage.tell(tests, "error", 0.0, "the packed tests have none of this name")
    if stage.small:
        names = [name for name in names if not name.startswith(SLOW)]
    with ThreadPoolExecutor(at_a_time(stage)) as pool:
        list(pool.map(lambda name: test(stage, name), names))


def test(stage: Stage, name: str) -> None:
    """Runs one test."""
    try:
        finished = stage.run([stage.program("kernels"), "--exact", name], SECONDS, DRIVER)
    except OutOfTime:
        stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
        return
    ran = "1 passed" in finished.out
    told = "" if finished.ok else panic(finished.out) or finished.says()
    stage.tell(name, "passed" if finished.ok and ran else "failed", finished.seconds, told)


def kernels(stage: Stage) -> None:
    """Every kernel at the sizes of its own tests."""
    asked = stage.run([stage.program("setrank"), "info", "--devices", "--check", "--json"], SECONDS)
    name = "info --devices --check"
    try:
        found = json.loads(asked.out)
    except ValueError:
        stage.tell(name, "error", asked.seconds, asked.says())
        return
    wrong = [check["what"] for check in found["checks"] if not check["right"]]
    status = "failed" if wrong else "passed" if asked.ok else "error"
    told = "; ".join(wrong) or (f"{len(found['checks'])} results" if asked.ok else asked.says())
    stage.tell(name, status, asked.seconds, told)
