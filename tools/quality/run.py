"""Quality on one real set: train, test, and write a table. What is done is skipped, so that a run goes on.

    python3 tools/quality/run.py FOLDER --out DIR [--only default paper authors] [--full]

FOLDER holds five parts (A1.txt to A5.txt or S1.txt to S5.txt); fold k trains on parts k, k+1, k+2,
validates on k+3, tests on k+4 (mod 5). Rows of the table, for MSAB and IMSAB each:

default   5 folds, 3 seeds: the mean over queries of the mean over seeds, and the ensemble of the seeds
paper     fold 1, 1 seed, full size
authors   fold 1, 1 seed, full size, the authors' code: IMSAB only; validated every 25 steps and stopped when
          150 have not lowered the loss, since the weights of the lowest are what is kept

--full runs `paper` and `authors` on all folds, and all 10,000 steps of `authors`.
"""

import argparse
import json
import subprocess
from pathlib import Path

METRICS = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
# preset: encoders, seeds, whether all folds are always run, flags unless --full
PRESETS = {
    "default": (("imsab", "msab"), 3, True, []),
    "paper": (("imsab", "msab"), 1, False, []),
    "authors": (("imsab",), 1, False, ["--valid-every", "25", "--patience", "6"]),
}


def parts(folder: Path) -> list[str]:
    """The five parts of a set."""
    found = sorted(folder.glob("[AS][1-5].txt"))
    if len(found) != 5:
        raise SystemExit(f"{folder}: five parts A1.txt … A5.txt or S1.txt … S5.txt are expected")
    return [str(part) for part in found]


def crossval(args: argparse.Namespace, preset: str, encoder: str, folds: str | None) -> dict:
    """The report of `setrank crossval`, which skips what its folder has."""
    _, seeds, _, flags = PRESETS[preset]
    whole = "-full" if args.full and flags else ""
    folder = args.out / args.folder.name / f"{preset}-{encoder}{whole}"
    command = [args.setrank, "crossval", *parts(args.folder), "-o", str(folder), "--json"]
    command += ["--preset", preset, "--encoder", encoder, "--metrics", ",".join(METRICS)]
    command += ["--seeds", str(seeds), "--jobs", str(args.jobs), "--threads", str(args.threads)]
    if folds:
        command += ["--folds", folds]
    if not args.full:
        command += flags
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def row(name: str, queries: int, figures: dict, ensemble: bool = False) -> str:
    """A row of the table: mean ± standard error of each metric."""
    chosen = [figures[metric]["ensemble"] if ensemble else figures[metric] for metric in METRICS]
    cells = [f"{value['mean']:.4f} ± {value['std_error']:.4f}" for value in chosen]
    return f"| {name} | {queries} | {' | '.join(cells)} |"


def rows_of(name: str, report: dict) -> list[str]:
    """The rows of a report: its seeds' mean and, of several seeds, their ensemble."""
    whole = report["test"]["all"]
    queries = whole["metrics"]["ndcg@10"]["queries"]
    rows = [row(name, queries, whole["metrics"])]
    if report["seeds"] > 1:
        rows.append(row(f"{name}, ensemble of {report['seeds']} seeds", queries, whole["metrics"], True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the set")
    parser.add_argument("--out", type=Path, required=True, help="folder for models and tables")
    parser.add_argument("--only", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--full", action="store_true", help="full size on all folds, too")
    parser.add_argument("--setrank", default="target/release/setrank")
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    header = "| model | queries | " + " | ".join(metric.upper() for metric in METRICS) + " |"
    lines = [header, "|---|---:" + "|---" * len(METRICS) + "|"]
    reports = {}
    for preset in args.only:
        encoders, seeds, always, _ = PRESETS[preset]
        folds = None if always or args.full else "1"
        for encoder in encoders:
            report = crossval(args, preset, encoder, folds)
            where = "5 folds" if folds is None else "fold 1"
            name = f"`{preset}`, {encoder.upper()}, {where} × {seeds} seed{'s' * (seeds > 1)}"
            reports[name] = report
            lines += rows_of(name, report)
            print("\n".join(rows_of(name, report)), f"({report['seconds']:.0f} s of training)", flush=True)
    stem = args.out / args.folder.name / "table"
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    stem.with_suffix(".json").write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    main()
