"""A short real training on a small set: a GPU learns what the processor learns."""

from __future__ import annotations

import json

from part import Stage

METRIC = "ndcg@10"
# the GPU's rounding makes another run of it: as far apart as two seeds are
MARGIN = 0.02
MODEL = "--hidden 64 --heads 2 --blocks 2 --ffn 128 --inducing 8 --encoder imsab --patience 0 --seed 1".split()
SECONDS = 60.0


def run(stage: Stage) -> None:
    """Trains on both devices and compares what they reach."""
    queries, epochs = (12, 1) if stage.small else (400, 10)
    for name, seed, count in (("train", 1, queries), ("valid", 2, queries)):
        command = [stage.program("setrank"), "synth", "--like", "yahoo", "--queries", str(count)]
        made = stage.run([*command, "--seed", str(seed), "-o", file(stage, f"{name}.sets")], 20)
        if not made.ok:
            stage.tell("training", "error", made.seconds, f"making up data: {made.says()}")
            return
    reached, seconds = {}, 0.0
    for device in ("cpu", "cuda"):
        data = ["--train", file(stage, "train.sets"), "--valid", file(stage, "valid.sets"), "-o", file(stage, device)]
        command = [stage.program("setrank"), "train", "--device", device, *data, *MODEL, "--epochs", str(epochs)]
        trained = stage.run(command, SECONDS)
        seconds += trained.seconds
        if not trained.ok:
            stage.tell("training", "error", seconds, f"on {device}: {trained.says()}")
            return
        command = [stage.program("setrank"), "eval", "--model", file(stage, device), "--data", file(stage, "valid.sets")]
        scored = stage.run([*command, "--metrics", METRIC, "--json", "--device", device], 30)
        if not scored.ok:
            stage.tell("training", "error", seconds, f"evaluating on {device}: {scored.says()}")
            return
        reached[device] = json.loads(scored.out)["metrics"][METRIC]["mean"]
    status = "passed" if reached["cuda"] >= reached["cpu"] - MARGIN else "failed"
    message = f"{METRIC} {reached['cuda']:.4f}, {reached['cpu']:.4f} on the processor"
    stage.tell("training", status, seconds, message, reached=reached)


def file(stage: Stage, name: str) -> str:
    return str(stage.work / name)
