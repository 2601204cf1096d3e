#!/usr/bin/env python3
"""Writes docs/benchmarks.html: the committed figures on one page that needs nothing else.

usage: tools/page/page.py [--check]

With --check it writes nothing, and fails where the page is not what the figures make of it.
"""

from __future__ import annotations

import csv
import html
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches" / "results"
PICTURES = ROOT / "docs" / "benchmarks"
COUNTS = ROOT / "src" / "bench" / "ablation" / "counts.tsv"
PAGE = ROOT / "docs" / "benchmarks.html"

# rates of an H100, as src/bench/ablation has them: operations of mma.sync, bytes, requests, exponentials, wavefronts
RATES = {"products": 0.65 * 798e12 / 4096, "unique": 3.0e12, "requested": 5.5e12, "exponentials": 3.6e12,
         "wavefronts": 132 * 1.7e9}
# of products by warpgroups
WGMMA = 798e12 / 4096
BLOCKS = 6
ENCODERS = {"msab": "MSAB", "imsab": "IMSAB"}
BATCHES = {"40": "sets of 40", "384": "sets of 384"}
PEERS = {"32x40": "32 sets of 40", "istella": "32 of Istella's sizes", "yahoo": "64 of Yahoo's sizes"}

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --card: #f6f8fa; --ours: #2563a8;
  --theirs: #b9c3cf; --guess: #9a6b1f; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --line: #333c48; --card: #171d25;
  --ours: #6aa5e6; --theirs: #4a5665; --guess: #d8a657; --page: #0f141a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; max-width: 60rem;
  padding: 2rem 1.25rem 4rem; }
h1 { font-size: 2rem; margin: 0 0 .25rem; } h2 { margin: 3rem 0 .5rem; font-size: 1.3rem; }
p { max-width: 46rem; } .soft, caption, footer { color: var(--soft); font-size: .9rem; }
.tag { font-size: .75rem; font-weight: 600; border: 1px solid; border-radius: 1rem; padding: .1rem .6rem; margin-left: .6rem;
  vertical-align: middle; white-space: nowrap; }
.measured { color: var(--ours); } .predicted { color: var(--guess); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } td:first-child, th:first-child { text-align: left; }
td.bar { width: 40%; min-width: 9rem; } .bar i { display: block; height: .6rem; border-radius: .2rem; background: var(--ours); }
.bar i + i { background: var(--theirs); margin-top: .15rem; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; background: #fff;
  border-radius: .4rem; }
code { background: var(--card); padding: .1rem .3rem; border-radius: .2rem; font-size: .88rem; }
"""


def result(name: str) -> dict:
    return json.loads((RESULTS / name).read_text())


def escape(text: object) -> str:
    return html.escape(str(text))


def row(cells: list[str], head: bool = False) -> str:
    tag = "th" if head else "td"
    return "<tr>" + "".join(cell if cell.startswith("<td") else f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def table(head: list[str], rows: list[list[str]], caption: str) -> str:
    body = "\n".join(row(cells) for cells in rows)
    return (f'<div class="wide"><table><caption>{caption}</caption>\n<thead>{row(head, True)}</thead>\n'
            f"<tbody>{body}</tbody></table></div>")


def bars(values: list[float], most: float) -> str:
    return '<td class="bar">' + "".join(f'<i style="width:{100 * value / most:.1f}%"></i>' for value in values) + "</td>"


def against_pytorch() -> str:
    found = result("2026-11-30-cpu-pytorch.json")
    cells = found["cells"]
    most = max(cell["ours_docs_per_s"] for cell in cells)
    peaks = [turn["peak_gflops"] for cell in cells for turn in cell["our_rounds"]]
    rows = [
        [
            f"{cell['mode']} {ENCODERS[cell['encoder']]}, {PEERS[cell['batch']]}",
            bars([cell["ours_docs_per_s"], cell["theirs_docs_per_s"]], most),
            f"{cell['ours_docs_per_s']:,.0f}",
            f"{cell['theirs_docs_per_s']:,.0f}",
            escape(cell["variant"]),
            f"{cell['ratio']:.2f}",
            f"{100 * cell['our_share']:.0f} %",
        ]
        for cell in cells
    ]
    caption = (f"{escape(found['cpu'])}, {found['threads']} cores, {found['date'][:10]}, commit {found['commit']}; "
               f"PyTorch {escape(found['torch'])}, the fastest of its variants; medians of {found['rounds']} turns. A large "
               f"product alone: {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s here, {found['their_peak_gflops']:.0f} there")
    head = ["", "", "setrank, docs/s", "PyTorch, docs/s", "its variant", "ratio", "of our peak"]
    return table(head, rows, caption)


def picture(name: str, what: str) -> str:
    svg = (PICTURES / name).read_text()
    return f'<figure role="img" aria-label="{escape(what)}">{svg[svg.index("<svg"):]}<figcaption class="soft">{what}</figcaption></figure>'


def layouts() -> str:
    rows = []
    for name, of in (("train-yahoo", "training, Yahoo's sizes"), ("infer-yahoo", "scoring, Yahoo's sizes"),
                     ("infer-istella", "scoring, Istella's sizes")):
        for point in result(f"2026-11-30-cpu-layouts-{name}.json")["points"]:
            report = point["report"]
            unpadding = report["unpadding_s"]
            rows.append([
                f"{of}, {ENCODERS[report['encoder']]}: {report['layout']}",
                f"{report['rows_per_doc']:.2f}",
                f"{report['docs_per_s']:,.0f}",
                "–" if unpadding is None else f"{100 * unpadding / report['median_s']:.2f} %",
            ])
    caption = "Batches as frameworks hand them over are made ragged by one copy; what padding holds is never computed"
    return table(["", "rows a document", "docs/s", "the copy"], rows, caption)


def latency() -> str:
    rows = []
    for encoder, name in ENCODERS.items():
        for of in result(f"2026-11-30-cpu-latency-{encoder}.json")["latencies"]:
            rows.append([f"{name}, {of['docs']} documents", f"{1e3 * of['p50_s']:.2f} ms", f"{1e3 * of['p99_s']:.2f} ms"])
    return table(["one query", "median", "99th percentile"], rows, "Two cores, AVX-512")


def rates(kernel: str) -> dict[str, float]:
    """What an H100 does of each count in a second, by that kernel."""
    return RATES | ({"products": WGMMA} if "_wgmma" in kernel else {})


def predicted() -> list[dict]:
    """Documents a second of each rung, as src/bench/ablation predicts them."""
    lines = [line for line in COUNTS.read_text().splitlines() if not line.startswith("#")]
    rungs: dict[tuple, dict] = {}
    for line in csv.DictReader(lines, delimiter="\t"):
        key = (line["encoder"], line["size"], line["fuse"], line["matrix"])
        rung = rungs.setdefault(key, {"kernels": {}})
        if line["part"] == "step":
            rung["launches"] = float(line["requested"])
            continue
        times = BLOCKS - 1 if line["part"] == "block" else 1
        counts = rung["kernels"].setdefault(line["kernel"], dict.fromkeys(RATES, 0.0))
        for key in RATES:
            counts[key] += times * float(line[key])
    for (encoder, size, fuse, matrix), rung in rungs.items():
        kernels = rung["kernels"]
        seconds = sum(max(of[key] / rate for key, rate in rates(kernel).items()) for kernel, of in kernels.items())
        rung.update(encoder=encoder, size=size, fuse=fuse, matrix=matrix, docs_per_s=1 / seconds)
        rung.update({key: sum(of[key] for of in kernels.values()) for key in RATES})
    return list(rungs.values())


def fusion() -> str:
    rungs = predicted()
    most = max(rung["docs_per_s"] for rung in rungs)
    rows = [
        [
            f"{ENCODERS[rung['encoder']]}, {BATCHES[rung['size']]}: <code>--fuse {rung['fuse']}</code>"
            + ("" if rung["matrix"] == "mma" else f", <code>--kernels {rung['matrix']}</code>"),
            bars([rung["docs_per_s"]], most),
            f"{rung['docs_per_s'] / 1e6:.1f} M",
            f"{rung['launches']:.0f}",
            f"{rung['requested'] / 1e3:,.0f} KB",
            f"{rung['unique'] / 1e3:,.0f} KB",
        ]
        for rung in rungs
    ]
    head = ["", "", "docs/s", "launches", "requested", "unique"]
    return table(head, rows, "A training step of full size on an H100, by counts of the emulator and rates of others")


def page() -> str:
    sections = [
        ("Beside PyTorch on a processor", "measured", "Documents a second of the same model, sets, threads and steps. "
         "PyTorch pads; its fastest variant of eager and compiled, in one to 32 buckets, stands here (grey).",
         against_pytorch()),
        ("However large sets are", "measured", "IMSAB's cost a document does not grow with its set; MSAB's does slowly.",
         picture("train-sizes-speed.svg", "Documents a second of training against documents of a set")),
        ("However batches come", "measured", "Ragged, padded, masked or bucketed: the same scores to the bit.", layouts()),
        ("One query", "measured", "From features to scores, the model of full size on a processor.", latency()),
        ("What fusing kernels saves", "predicted", "Nothing here was measured on a card. Each kernel takes as long as the "
         "slowest of its products, bytes, requests to the L2 cache, exponentials and cycles of shared memory.", fusion()),
    ]
    body = "\n".join(
        f'<h2>{title}<span class="tag {kind}">{kind}</span></h2>\n<p>{text}</p>\n{content}'
        for title, kind, text, content in sections
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>setrank: benchmarks</title>
<style>{STYLE}</style>
<h1>setrank</h1>
<p class="soft">SetRank (SIGIR 2020) in Rust, with its own kernels for NVIDIA GPUs. Full size: C 256, H 8, L 6, G 1024, M 20,
220 features. What was <span class="measured">measured</span> and what is <span class="predicted">predicted</span> is told apart.</p>
{body}
<footer><p>Every figure is in <code>benches/results</code> or <code>src/bench/ablation/counts.tsv</code>;
<code>docs/benchmarks.md</code> and <code>docs/fusion.md</code> say how they came about and which commands give them:
<code>python tools/peers/compare_speed.py</code>, <code>setrank bench train --sweep sizes</code>,
<code>setrank bench infer --sweep layouts</code>, <code>setrank bench infer --latency</code>,
<code>setrank bench train --ablate</code>. This page is written by <code>tools/page/page.py</code>.</p></footer>
</html>
"""


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not what the figures make of it: run tools/page/page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
