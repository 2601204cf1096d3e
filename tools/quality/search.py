"""Try configurations of training on validation parts, and keep what came of each as a line of a table.

    python3 tools/quality/search.py PART... --out docs/quality/NAME.tsv --work DIR [--only WORD]

runs `setrank crossval --validation-only` for every line of configurations.txt that the table does
not have yet; a line of one set alone is skipped for tables of other names. No model is evaluated on
a part that its fold tests on. What was tried and lost stays in the table.
"""

import argparse
import json
import shlex
import subprocess
import zlib
from pathlib import Path

CONFIGURATIONS = Path(__file__).with_name("configurations.txt")
COLUMNS = ("name", "ndcg@10", "std_error", "seed_deviation", "ensemble", "seconds", "flags")


def read_configurations(path: Path, data: str) -> dict[str, str]:
    """The flags of each name that is for the set `data`.

    A line is `name: flags`, or `name @set: flags` where it is for one set only; `#` begins a comment.
    """
    configurations = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            head, _, flags = line.partition(":")
            name, _, only = (part.strip() for part in head.partition("@"))
            if only in ("", data):
                configurations[name] = flags.strip()
    return configurations


def finished(table: Path) -> set[str]:
    """Names and flags that the table has, so that a name whose flags have changed is tried again."""
    if not table.exists():
        return set()
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    return {f"{row[0]}: {row[-1]}" for row in rows}


def measure(setrank: str, parts: list[str], folder: Path, flags: str, common: str) -> list[str]:
    """Runs one configuration; its figures as the table has them."""
    command = [setrank, "crossval", *parts, "-o", str(folder), "--validation-only", "--json"]
    command += ["--metrics", "ndcg@10", *shlex.split(flags), *shlex.split(common)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    report = json.loads(output)
    figures = report["validation"]["all"]["metrics"]["ndcg@10"]
    deviation = figures["seed_deviation"]
    return [
        f"{figures['mean']:.4f}",
        f"{figures['std_error']:.4f}",
        "-" if deviation is None else f"{deviation:.4f}",
        f"{figures['ensemble']['mean']:.4f}",
        f"{report['seconds']:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the table")
    parser.add_argument("--work", type=Path, required=True, help="folder for the models")
    parser.add_argument("--only", default="", help="only names that have this in them")
    parser.add_argument("--setrank", default="target/release/setrank")
    parser.add_argument("--common", default="--threads 1 --seeds 2", help="flags of every run")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.out.exists():
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\t".join(COLUMNS) + "\n")
    for name, flags in read_configurations(CONFIGURATIONS, args.out.stem).items():
        if args.only not in name or f"{name}: {flags}" in finished(args.out):
            continue
        # a folder of crossval is of one configuration
        folder = args.work / f"{name}-{zlib.crc32(f'{flags} {args.common}'.encode()):08x}"
        figures = measure(args.setrank, args.parts, folder, flags, args.common)
        with args.out.open("a") as table:
            table.write("\t".join([name, *figures, flags]) + "\n")
        print(name, *figures, flush=True)


if __name__ == "__main__":
    main()
