"""Tests of the stages with programs that only pretend."""

from __future__ import annotations

import json
import os
import tempfile
import time
import unittest
from pathlib import Path

import checks
import counters
import main
import peers
import process
import sanitizer
import speeds
import suite
import throughput
from part import Part, Stage, run_parts
from report import COMPLETE, Report

PRETENDS = """#!/usr/bin/env python3
import json, os, sys, time
command, *rest = sys.argv[1:]
def answer(status, **more):
    print(json.dumps({"name": rest[0], "status": status, "seconds": 0.0, **more}))
if command == "device":
    print(json.dumps({"name": "Card", "compute_capability": "9.0"}))
elif command == "list" and rest:
    print("counted/k k 4x4")
elif command == "list":
    print("right\\nwrong\\nfaults\\ndies\\nptx/hangs\\ngraphs/x")
elif rest[0] == "right":
    assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1" and rest[1:] == ["--small"]
    answer("passed", told={"vectors": 2})
elif rest[0] == "graphs/x":
    assert "CUDA_LAUNCH_BLOCKING" not in os.environ
    answer("passed")
elif rest[0] == "wrong":
    place = {"at": 3, "found": "1", "expected": "2"}
    mismatch = {"what": "y", "seed": 1, "wrong": 1, "of": 8, "first": [place], "wrong_by_index_mod_8": [0] * 8}
    answer("failed", mismatches=[{**mismatch, "outputs": {"found": ["1"], "expected": ["2"]}}])
    sys.exit(1)
elif rest[0] == "faults":
    answer("error", message="launching k failed: CUDA_ERROR_ILLEGAL_ADDRESS")
    sys.exit(2)
elif rest[0] == "dies":
    os.abort()
elif rest[0] == "ptx/hangs":
    if sys.argv[0].endswith("-bounded"):
        print("block 3, warp 1 waited in vain at copies.cu:40")
    else:
        time.sleep(600)
"""
SANITIZER = """#!/bin/sh
echo "========= Invalid __global__ write of size 4 bytes"
echo "========= ERROR SUMMARY: 1 error"
[ "$2" = memcheck ] || exit 99
"""
SETRANK = """#!/usr/bin/env python3
import json, sys
command, *rest = sys.argv[1:]
cuda = "cuda" in rest
if command == "bench" and "--print-sizes" in rest:
    print("40")
elif command == "bench" and "imsab" in rest:
    sys.exit("error: --device cuda: not enough memory")
elif command == "bench" and "--ablate" in rest:
    speeds = (("none", "mma", 1e6), ("all", "mma", 4e6), ("all", "wgmma", 5e6))
    rungs = [{"fuse": fuse, "matrix": matrix, "measured": {"docs_per_s": speed}} for fuse, matrix, speed in speeds]
    with open(rest[rest.index("--json") + 1], "w") as file:
        json.dump({"rungs": rungs}, file)
elif command == "bench":
    assert "80" not in rest or rest[rest.index("--peak") + 1] == "600", rest
    assert "--peak" in rest or rest[rest.index("--peak-side") + 1] == "64", rest
    times = [{"kernel": name, "launches": 2.0, "seconds": seconds} for name, seconds in (("a", 1e-3), ("b", 3e-3))]
    gpu = {"copy_bytes_per_s": 2e12, "launches_per_step": 4.0, "share_of_floor": 0.25, "kernels": times}
    gpu.update({"profiled_step_s": 5e-3, "between_kernels_s": 1e-3, "graph_launches_per_step": 2.0})
    median = 2e-5 if "--graphs" in rest else 4e-5
    figures = {"docs": 80, "docs_per_s": 2e6, "median_s": median, "rounds_s": [4e-5, 5e-5], "peak_gflops": 5e5}
    figures["rows_per_doc"] = 1.5 if "masked" in rest else 1.0
    with open(rest[rest.index("--json") + 1], "w") as file:
        json.dump({**figures, "gpu": gpu}, file)
elif command == "eval":
    print(json.dumps({"metrics": {"ndcg@10": {"mean": 0.5 if cuda else 0.6}}}))
elif command == "info":
    print(json.dumps({"checks": [{"what": "k", "right": False}]}))
    sys.exit(1)
"""
KERNELS = """#!/usr/bin/env python3
import os, sys
if sys.argv[1] == "--list":
    print("model::off: test\\nmodel::training::twenty: test\\nhost::arenas_are: test")
else:
    assert os.environ["SETRANK_TEST_DRIVER"] == "real"
    print("thread 'x' panicked at tests/x.rs:1:1:\\nlosses: off")
    sys.exit(101)
"""
NCU = """#!/usr/bin/env python3
import sys
if sys.argv[1] == "--query-metrics":
    print("l1tex__data_pipe_lsu_wavefronts_mem_shared  Counter\\ndram__bytes_read  Counter")
else:
    assert "dram__bytes_write.sum" not in " ".join(sys.argv)
    print('==PROF== Profiling')
    print('"ID","Kernel Name","dram__bytes_read.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"')
    print('"","","byte","inst"')
    print('"0","k","1,500","80"')
"""
TORCH = """import json, os, sys
cells = [sys.argv[at + 1 : at + 5] for at, word in enumerate(sys.argv) if word == "--cell"]
for mode, encoder, sizes, variant in cells:
    assert open(sizes).read() == "40\\n"
    if (mode, variant) == ("train", "compile-8"):
        os.abort()
    line = {"docs": 80, "docs_per_s": 1e6 if variant == "eager-1" else 5e5, "variant": variant}
    broken = (mode, encoder, variant) == ("infer", "msab", "varlen")
    print(json.dumps({"error": "RuntimeError: CUDA error", "variant": variant} if broken else line), flush=True)
    if broken:
        sys.exit(1)
"""
PEAKS = """import json
print(json.dumps({"peak_gflops": 6e5, "copy_gbytes": 2500.0}))
"""


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


class Stages(unittest.TestCase):
    def setUp(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        for name in ("setrank-gpu-check", "setrank-gpu-check-bounded"):
            program(self.folder, name, PRETENDS)
        self.environment = dict(os.environ)
        self.path = os.environ["PATH"]
        self.seconds = checks.SECONDS

    def tearDown(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        checks.SECONDS = self.seconds
        process.stopped.clear()
        self.temporary.cleanup()

    def stage(self, seconds: float = 60) -> Stage:
        return Stage(self.folder, self.folder, self.folder, True, time.monotonic() + seconds)

    def test_each_failure_is_told_as_what_it_is(self) -> None:
        program(self.folder, "compute-sanitizer", SANITIZER)
        os.environ["PATH"] = f"{self.folder}:{self.path}"
        checks.SECONDS = 1.5
        stage = self.stage()
        run_parts(stage, main.TRIAGE)
        rows = {row["name"]: row for row in stage.rows}
        self.assertEqual(rows["machine"]["status"], "passed")
        self.assertEqual(rows["right"]["status"], "passed")
        self.assertEqual(rows["graphs/x"]["status"], "passed")
        self.assertEqual(rows["wrong"]["status"], "failed")
        self.assertIn("1 of 8 values, at [3]", rows["wrong"]["message"])
        self.assertIn("SIGABRT", rows["dies"]["message"])
        self.assertIn("still ran after", rows["ptx/hangs"]["message"])
        self.assertIn("block 3, warp 1", rows["bounded waits of ptx/hangs"]["message"])
        self.assertIn("Invalid __global__ write", rows["memcheck of faults"]["message"])
        out = self.folder / "out"
        Report("triage", out).begin()
        found = Report("triage", out).save(stage, 1.0, COMPLETE)
        self.assertEqual(found["counts"]["failed"], 1)
        names = sorted(file.name for file in out.iterdir())
        self.assertEqual(names, ["triage-log.txt", "triage-outputs.jsonl", "triage.json", "triage.txt"])
        written = json.loads((out / "triage.json").read_text())
        self.assertNotIn("outputs", written["results"][-1].get("mismatches", [{}])[0])
        outputs = json.loads((out / "triage-outputs.jsonl").read_text())
        self.assertEqual((outputs["name"], outputs["found"], outputs["expected"]), ("wrong", ["1"], ["2"]))
        self.assertIn("card: Card", (out / "triage.txt").read_text())

    def test_the_full_stage(self) -> None:
        names = {"setrank": SETRANK, "kernels": KERNELS, "ncu": NCU, "compute-sanitizer": SANITIZER}
        for name, text in names.items():
            program(self.folder, name, text)
        (self.folder / "counters.txt").write_text("k 4x4: unique 2.0 + 0.5, wavefronts 64, products 3 (50 %)\n")
        (self.folder / "peers").mkdir()
        (self.folder / "peers" / "bench_torch.py").write_text(TORCH)
        (self.folder / "peers" / "peaks_torch.py").write_text(PEAKS)
        os.environ["PATH"] = f"{self.folder}:{self.path}"
        stage = self.stage()
        stage.facts["torch"] = {"version": "2", "available": True}
        stage.facts["device"] = {"name": "Card"}
        run_parts(stage, main.FULL[1:])
        rows = {row["name"]: row for row in stage.rows}
        told = {name: (row["status"], row["message"]) for name, row in rows.items()}
        self.assertEqual(told["model::off"], ("failed", "losses: off"))
        self.assertNotIn("model::training::twenty", told)
        # a filter whose tests have other names now
        self.assertEqual(told["host::parts_are"][0], "error")
        self.assertEqual(told["info --devices --check"], ("failed", "k"))
        rates = "setrank: P 500 TFLOP/s, BW 2000 GB/s; torch: P 600 TFLOP/s, BW 2500 GB/s"
        self.assertEqual(told["peaks"], ("passed", rates))
        self.assertEqual(told["bench train msab 40 80"], ("passed", "2,000,000 documents/s, 25.0 % of the floor"))
        self.assertAlmostEqual(rows["bench train msab 40 80"]["bench"]["spread"], 0.25)
        self.assertIn("not enough memory", rows["bench infer imsab 40 80"]["message"])
        pair = "20 us a step with graphs, 40 without (2.00 times as fast); 4 kernels in 2 graphs"
        self.assertEqual(told["graphs train msab 40 32"], ("passed", pair))
        self.assertEqual(rows["graphs infer msab 500 1"]["graphs"]["plain"]["median_s"], 4e-5)
        self.assertIn("plain: exit code 1: error: --device cuda", told["graphs infer imsab 500 1"][1])
        layouts = "; ".join(
            f"{layout} {rows} rows a document, 1.000"
            for layout, rows in (("ragged", "1.00"), ("bucketed", "1.00"), ("padded", "1.00"), ("masked", "1.50"))
        )
        told_layouts = ("passed", f"of the ragged batch's time: {layouts}")
        self.assertEqual(told["layouts train msab 40 80"], told_layouts)
        self.assertEqual(rows["layouts infer msab 40 80"]["layouts"]["masked"]["rows_per_doc"], 1.5)
        self.assertIn("ragged: exit code 1: error: --device cuda", told["layouts infer imsab 40 80"][1])
        self.assertEqual(told["ablation msab 40 80"], ("passed", "documents/s: none 1,000,000; all 4,000,000; all, wgmma 5,000,000"))
        self.assertIn("not enough memory", told["ablation imsab 40 80"][1])
        self.assertEqual(told["training"], ("failed", "ndcg@10 0.5000, 0.6000 on the processor"))
        self.assertEqual(rows["memcheck of step/msab"]["status"], "passed")
        self.assertEqual(rows["racecheck of step/msab"]["status"], "failed")
        counted = rows["ncu of k"]["counters"]
        self.assertEqual((counted["unique"], counted["wavefronts"]), ([2.5, 1.5], [64.0, 80.0]))
        self.assertEqual((counted["products"], counted["exponentials"]), ([3.0, None], [None, None]))
        self.assertEqual(told["torch train msab istella eager-1"], ("passed", "1,000,000 documents/s"))
        # what ends the process is the end of one cell
        self.assertEqual(told["torch infer msab istella varlen"], ("error", "RuntimeError: CUDA error"))
        self.assertEqual(told["torch infer msab istella eager-8"][0], "passed")
        self.assertIn("SIGABRT", told["torch train imsab istella compile-8"][1])
        self.assertEqual(told["torch infer imsab istella compile-8"][0], "passed")
        out = self.folder / "out"
        Report("full", out).begin()
        Report("full", out).save(stage, 1.0, COMPLETE)
        written = (out / "full.txt").read_text().splitlines()
        self.assertIn("train msab 40               80   2,000,000  25.0 %  25.0 %      500    2,000      4.0", written)
        self.assertIn("train msab istella          80" + 58 * " " + "1,000,000         eager-1", written)
        self.assertIn("b                                          3  60.0 %", written)
        self.assertIn("all of the step                            5 100.0 %", written)

    def test_ours_stands_beside_theirs(self) -> None:
        rows = [{"name": "torch train msab 40 eager", "peers": [{"docs": 80, "docs_per_s": 1e6, "variant": "varlen"}]}]
        gpu = {"copy_bytes_per_s": 2e12, "launches_per_step": 4.0, "share_of_floor": None, "kernels": []}
        gpu.update({"profiled_step_s": 5e-3, "between_kernels_s": 5e-3})
        bench = {"docs": 80, "docs_per_s": 2.5e6, "peak_gflops": None, "spread": 0.01, "gpu": gpu}
        rows.append({"name": "bench train msab 40 80", "bench": bench})
        lines = speeds.tables({}, rows)
        self.assertTrue(any(line.endswith("4.0   1,000,000   2.50  varlen") for line in lines), lines)

    def test_without_tools_parts_are_skipped(self) -> None:
        os.environ["PATH"] = str(self.folder)
        stage = self.stage()
        stage.facts["device"] = {"name": "Card"}
        run_parts(stage, [part for part in main.FULL if part.name in ("sanitizer", "counters", "peers")])
        self.assertEqual([row["status"] for row in stage.rows], ["skipped"] * 3)

    def test_parts_do_not_hide_each_other(self) -> None:
        def breaks(stage: Stage) -> None:
            raise RuntimeError("of no use")

        stage = self.stage(0.5)
        last = Part("last", 0, 60, lambda stage: stage.tell("last", "passed", 0.0) and None)
        stage.facts["device"] = {"name": "Card"}
        run_parts(stage, [Part("breaks", 0, 60, breaks), Part("long", 100, 60, breaks), last])
        told = [(row["name"], row["status"]) for row in stage.rows]
        self.assertEqual(told, [("breaks", "error"), ("long", "skipped"), ("last", "passed")])

    def test_without_a_gpu_nothing_is_tried(self) -> None:
        program(self.folder, "setrank-gpu-check", "#!/bin/sh\necho 'error: there is no NVIDIA driver' >&2\nexit 2\n")
        stage = self.stage()
        run_parts(stage, main.TRIAGE)
        self.assertEqual([row["status"] for row in stage.rows], ["error", "skipped"])
        self.assertIn("there is no NVIDIA driver", stage.rows[0]["message"])

    def test_what_time_may_run_out_for_comes_last(self) -> None:
        stage = self.stage()
        stage.small = False
        cells: list[tuple] = []
        kept, throughput.cell = throughput.cell, lambda stage, *of: cells.append(of) or of[:2] != ("train", "imsab")
        throughput.run(stage)
        throughput.cell = kept
        small, large = throughput.BATCH_DOCS
        self.assertEqual([of[3] for of in cells], [small] * 12 + [large] * 9)
        self.assertEqual({of[2] for of in cells[:3]}, set(throughput.SIZES))
        self.assertNotIn(("train", "imsab"), [of[:2] for of in cells[12:]])
        # of PyTorch: what needs no compiling has a part of its own before
        self.assertFalse([of for of in peers.wanted(stage, peers.PLAIN) if "compile" in of[3] or "graph" in of[3]])
        parts = [part.name for part in main.FULL]
        self.assertLess(parts.index("peers"), parts.index("compiled peers"))

    def test_what_was_measured_before_the_time_ran_out_is_kept(self) -> None:
        hangs = TORCH + "    if (mode, variant) == ('infer', 'eager-1'):\n        import time; time.sleep(60)\n"
        (self.folder / "peers").mkdir()
        (self.folder / "peers" / "bench_torch.py").write_text(hangs)
        program(self.folder, "setrank", SETRANK)
        kept, peers.LEAST = peers.LEAST, 1.0
        stage = self.stage(2.5)
        stage.facts["torch"] = {"version": "2", "available": True}
        peers.run_plain(stage)
        peers.LEAST = kept
        statuses = [row["status"] for row in stage.rows]
        self.assertEqual(statuses, ["passed"] * 4 + ["skipped"] * (len(statuses) - 4))
        self.assertEqual(len(statuses), 12)

    def test_what_runs_out_of_time_is_no_fault(self) -> None:
        slow = "#!/usr/bin/env python3\nimport sys, time\nif '--list' in sys.argv: print(\n"
        slow += "    ': test\\n'.join(['host::arenas_are', 'host::parts_are', 'host::pinned_memory',\n"
        slow += "    'graphs::graphs_change', 'model::slow', '']))\n"
        slow += "elif 'list' in sys.argv: print('right')\nelse: time.sleep(60)\n"
        for name in ("setrank", "kernels", "setrank-gpu-check"):
            program(self.folder, name, slow)
        stage = self.stage()
        stage.facts["device"] = {"name": "Card"}
        parts = [Part(name, 0, 1.5, run) for name, run in (("checks", checks.run), ("throughput", throughput.run))]
        run_parts(stage, parts)
        stage.small, suite.kernels, kept = False, lambda stage: None, suite.kernels
        run_parts(stage, [Part("suite", 0, 1.5, suite.run)])
        suite.kernels = kept
        told = [(row["name"], row["status"]) for row in stage.rows]
        self.assertIn(("right", "skipped"), told)
        self.assertIn(("model::slow", "skipped"), told)
        self.assertEqual({status for _, status in told}, {"skipped"})

    def test_a_longer_stage_has_longer_parts(self) -> None:
        stage = self.stage()
        stage.share, stage.facts["device"] = 2.0, {"name": "Card"}
        left: list[float] = []
        run_parts(stage, [Part("part", 0, 10, lambda stage: left.append(stage.left()))])
        self.assertTrue(19 < left[0] <= 20)

    def test_a_line_that_cannot_be_taken_leaves_no_program(self) -> None:
        command = ["sh", "-c", "echo a; exec sleep 600"]

        def breaks(line: str) -> None:
            raise ValueError(line)

        began = time.monotonic()
        with self.assertRaises(ValueError):
            process.run(command, 60, each_line=breaks)
        self.assertLess(time.monotonic() - began, 30)
        self.assertIsNone(peers.result('{"a": 1}') or peers.result("{torch}") or peers.result("[1]"))

    def test_what_a_tool_cannot_do_here_is_no_fault(self) -> None:
        def of(code: int, said: str) -> str:
            finished = process.Finished([], code, "", said, 1.0)
            return sanitizer.verdict(finished, said.splitlines())[0]

        self.assertEqual(of(0, "========= ERROR SUMMARY: 0 errors"), "passed")
        self.assertEqual(of(99, "========= Error: Device not supported\n========= ERROR SUMMARY: 1 error"), "skipped")
        self.assertEqual(of(99, "========= Invalid __global__ read\n========= ERROR SUMMARY: 1 error"), "failed")
        self.assertEqual(of(1, "error: no memory"), "error")
        # what a kernel does wrong is not hidden by what else the tool cannot do
        both = "========= Invalid __global__ read\n========= Warning: this is not supported"
        self.assertEqual(of(99, both), "failed")

    def test_what_was_not_counted_is_no_number(self) -> None:
        self.assertEqual([counters.number(text) for text in ("1,500", "nan", "inf", "", None)], [1500.0] + [None] * 4)


if __name__ == "__main__":
    unittest.main()
