"""What PyTorch is there, asked beside all else: to import it can take long the first time."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future, TimeoutError
from threading import Thread

from part import Stage
from process import run

# what the peers are written for, as PyTorch itself
OLDEST_PYTHON = (3, 10)
SECONDS = 120.0
QUESTION = (
    "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda,"
    "'available': torch.cuda.is_available()}))"
)


def begin(stage: Stage) -> None:
    """Asks; `known` gives the answer."""
    stage.torch = Future()
    # a daemon: nobody waits for an answer once the report is written
    Thread(target=ask, args=(stage, stage.torch), daemon=True).start()


def ask(stage: Stage, answer: Future) -> None:
    try:
        answer.set_result(asked(stage))
    except BaseException as error:  # it is for whoever wants the answer
        answer.set_exception(error)


def asked(stage: Stage) -> dict | str:
    """PyTorch's version and whether it sees the card, or why not."""
    if sys.version_info < OLDEST_PYTHON:
        return f"Python {sys.version.split()[0]} is older than {'.'.join(map(str, OLDEST_PYTHON))}"
    finished = run([sys.executable, "-c", QUESTION], min(SECONDS, stage.ends - time.monotonic()))
    stage.log(finished)
    # others may print as well
    answers = [line for line in finished.out.splitlines() if line.startswith("{")]
    return json.loads(answers[-1]) if finished.ok and answers else finished.says()


def known(stage: Stage, seconds: float) -> dict | str:
    """The answer, for which it waits so long; it is a fact from then on."""
    if stage.torch is None:
        return stage.facts.get("torch", "not asked for")
    try:
        stage.facts["torch"] = stage.torch.result(max(seconds, 0.0))
        stage.torch = None
    except TimeoutError:
        stage.facts["torch"] = "still being imported"
    return stage.facts["torch"]


def why_not(torch: dict | str) -> str | None:
    """Why it cannot be measured; None where it can."""
    if isinstance(torch, str):
        return f"no PyTorch: {torch}"
    return None if torch["available"] else "PyTorch sees no GPU"


def run_part(stage: Stage) -> None:
    """The part: takes note of the answer, for the report and the parts that follow."""
    known(stage, stage.left())
