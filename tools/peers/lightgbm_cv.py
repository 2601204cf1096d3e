"""LightGBM's LambdaMART over the five folds of real sets: NDCG@1, 3, 5, 10, mean ± standard error.

Fold k trains on parts k, k+1, k+2, validates on k+3 (early stopping on NDCG@10) and tests on k+4 (mod 5).
Queries without a relevant document are skipped; gain 2^y - 1; a missing value is NaN. With several seeds a
query's NDCG is the mean over them. Prints a table; --out also writes JSON and Markdown.
"""

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from letor import Dataset, read_letor
from ndcg import mean_and_error, ndcg_per_query

CUTOFFS = (1, 3, 5, 10)
FOLDS = 5
# folder: stem of the parts' names, number of features
SETS = {"mq2007agg": ("A", 21), "mslr_union": ("S", 136), "mq2008": ("S", 46)}
# The same for all sets. Nothing is sampled, so that seeds differ only with e.g. --set feature_fraction=0.8.
PARAMETERS = {
    "objective": "lambdarank",
    "metric": "ndcg",
    "eval_at": [10],
    "learning_rate": 0.05,
    "num_leaves": 31,
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
}
MAX_TREES = 1000
PATIENCE = 100


@dataclass
class Part:
    """One of the five parts of a set and the file it was read from."""

    path: Path
    data: Dataset


def fold_parts(fold: int) -> tuple[tuple[int, int, int], int, int]:
    """Numbers of the parts, from 0, that `fold` (from 0) trains on, validates on and tests on."""
    train = (fold, (fold + 1) % FOLDS, (fold + 2) % FOLDS)
    return train, (fold + 3) % FOLDS, (fold + 4) % FOLDS


def join(parts: list[Dataset]) -> Dataset:
    """The data sets one after the other."""
    offsets = [0]
    for part in parts:
        offsets += [offsets[-1] + end for end in part.offsets[1:]]
    features = np.concatenate([part.features for part in parts])
    return Dataset(features, np.concatenate([part.labels for part in parts]), offsets)


def read_parts(folder: Path, name: str) -> list[Part]:
    """The five parts of the set `name`."""
    stem, num_features = SETS[name]
    paths = [folder / name / f"{stem}{number}.txt" for number in range(1, FOLDS + 1)]
    return [Part(path, read_letor(path, num_features, 1, "missing")) for path in paths]


def train_and_score(
    train: Dataset, valid: Dataset, test: Dataset, parameters: dict
) -> tuple[np.ndarray, int]:
    """Scores [N] of the test documents, and the number of trees that early stopping chose."""
    import lightgbm  # here, so that everything else can be tested without it

    def to_lightgbm(data: Dataset, reference: "lightgbm.Dataset | None" = None) -> "lightgbm.Dataset":
        sizes = np.diff(data.offsets)
        return lightgbm.Dataset(data.features, data.labels, group=sizes, reference=reference)

    training = to_lightgbm(train)
    stopping = lightgbm.early_stopping(PATIENCE, verbose=False)
    booster = lightgbm.train(
        parameters, training, MAX_TREES, [to_lightgbm(valid, training)], callbacks=[stopping]
    )
    return booster.predict(test.features, num_iteration=booster.best_iteration), booster.best_iteration


def setrank_ndcg(setrank: Path, data: Path, scores: np.ndarray) -> list[float]:
    """Mean NDCG at each cutoff of the same scores, as `setrank eval` says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scores.txt"
        file.write_text("".join(f"{score!r}\n" for score in scores.tolist()))
        metrics = ",".join(f"ndcg@{k}" for k in CUTOFFS)
        command = [setrank, "eval", "--scores", file, "--data", data, "--metrics", metrics, "--json"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    means = json.loads(output)["metrics"]
    return [means[f"ndcg@{k}"]["mean"] for k in CUTOFFS]


def check_with_setrank(setrank: Path, data: Path, scores: np.ndarray, values: np.ndarray) -> None:
    """Raises where `setrank eval` says another NDCG than ours, `values` [Q, K]."""
    theirs = setrank_ndcg(setrank, data, scores)
    if not np.allclose(np.nanmean(values, axis=0), theirs, rtol=0, atol=1e-9):
        raise ValueError(f"{data}: {np.nanmean(values, axis=0)} here, {theirs} in setrank eval")


def run_set(parts: list[Part], seeds: int, parameters: dict, setrank: Path | None) -> dict:
    """NDCG over all test queries of the five folds, over those of fold 1, and the trees of each run."""
    folds, trees = [], []
    for fold in range(FOLDS):
        train, valid, test = fold_parts(fold)
        training = join([parts[number].data for number in train])
        tested = parts[test]
        of_seeds = []
        for seed in range(seeds):
            scores, count = train_and_score(
                training, parts[valid].data, tested.data, {**parameters, "seed": seed}
            )
            values = ndcg_per_query(tested.data.labels, scores, tested.data.offsets, CUTOFFS)
            if setrank is not None:
                check_with_setrank(setrank, tested.path, scores, values)
            of_seeds.append(values)
            trees.append(count)
        folds.append(np.mean(of_seeds, axis=0))
    return {"all": summarise(np.concatenate(folds)), "fold_1": summarise(folds[0]), "trees": trees}


def summarise(values: np.ndarray) -> dict:
    """Queries, and mean and standard error at each cutoff, of NDCG [Q, K]."""
    summary: dict = {"queries": int((~np.isnan(values[:, 0])).sum())}
    for column, k in enumerate(CUTOFFS):
        mean, error = mean_and_error(values[:, column])
        summary[f"ndcg@{k}"] = {"mean": mean, "standard_error": error}
    return summary


def table(results: dict) -> str:
    """The results as a Markdown table."""
    header = ["set", "queries"] + [f"NDCG@{k}" for k in CUTOFFS] + ["fold 1 NDCG@10"]
    lines = [header, ["---"] * len(header)]
    for name, result in results.items():
        cells = [result["all"][f"ndcg@{k}"] for k in CUTOFFS] + [result["fold_1"]["ndcg@10"]]
        figures = [f"{cell['mean']:.4f} ± {cell['standard_error']:.4f}" for cell in cells]
        lines.append([name, str(result["all"]["queries"]), *figures])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default, help="folder of the sets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=1, help="runs a fold, of seed 0, 1, ...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another LightGBM parameter"
    )
    parser.add_argument("--setrank", type=Path, help="also check every NDCG with this binary's eval")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    parameters = {**PARAMETERS, "num_threads": args.threads}
    parameters |= dict(setting.split("=", maxsplit=1) for setting in args.set)
    results = {}
    for name in args.sets:
        results[name] = run_set(read_parts(args.data, name), args.seeds, parameters, args.setrank)
        print(table({name: results[name]}), flush=True)
    if args.out is not None:
        import lightgbm

        record = {
            "date": date.today().isoformat(),
            "lightgbm": lightgbm.__version__,
            "parameters": parameters,
            "max_trees": MAX_TREES,
            "patience": PATIENCE,
            "seeds": args.seeds,
            "results": results,
        }
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        args.out.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
