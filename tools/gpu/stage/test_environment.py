"""Tests of what is put right of a machine's environment, and of what is found out about it."""

from __future__ import annotations

import os
import tempfile
import time
import unittest
from pathlib import Path

import checks
import driver
import environment
import machine
import pytorch
from part import Stage
from process import Finished

CARDS = """GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
  MIG 1g.18gb     Device  0: (UUID: MIG-1111)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb)
  MIG 1g.18gb     Device  0: (UUID: MIG-2222)
"""
SMI = f"""#!/bin/sh
if [ "$1" = -L ]; then
    printf '%s' '{CARDS}'
else
    echo "card $2, 580.1"
fi
"""


class Environment(unittest.TestCase):
    def setUp(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.kept = (dict(os.environ), environment.TOOLS, driver.FOLDERS)
        os.environ["PATH"] = f"{self.folder}:/usr/bin:/bin"
        for variable in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            os.environ.pop(variable, None)

    def tearDown(self) -> None:
        os.environ.clear()
        os.environ.update(self.kept[0])
        environment.TOOLS, driver.FOLDERS = self.kept[1:]
        self.temporary.cleanup()

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def stage(self) -> Stage:
        return Stage(self.folder, self.folder, self.folder, True, time.monotonic() + 60)

    def test_tools_are_found_beside_path_the_newest_first(self) -> None:
        for version in ("2024.9.1", "2025.10.0", "2025.2.1"):
            (self.folder / "ncu" / version).mkdir(parents=True)
        environment.TOOLS = (f"{self.folder}/ncu/*", "/no/such", str(self.folder))
        self.assertEqual(len(environment.add_tools()), 3)
        added = [Path(folder).name for folder in os.environ["PATH"].split(":")[3:]]
        self.assertEqual(added, ["2025.10.0", "2025.2.1", "2024.9.1"])
        self.assertEqual(environment.add_tools(), [])

    def test_the_folder_of_a_driver_is_added_and_stubs_are_left_out(self) -> None:
        os.environ["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs:/opt/lib"
        (self.folder / "libcuda.so.1").write_text("no library")
        driver.FOLDERS = ("/no/such", str(self.folder))
        said = [*environment.leave_stubs_out(), *environment.add_driver()]
        self.assertIn("stubs, whose libcuda.so is no driver", said[0])
        self.assertIn(f"added to LD_LIBRARY_PATH: {self.folder}", said[1])
        self.assertIn("does not load", said[1])
        self.assertEqual(os.environ["LD_LIBRARY_PATH"], f"/opt/lib:{self.folder}")

    def test_one_of_several_cards_is_used_and_asked_about(self) -> None:
        self.program("nvidia-smi", SMI)
        self.assertIn("of 2 cards the first", environment.take_one_card()[0])
        self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "0")
        self.assertEqual(environment.take_one_card(), [])
        for visible, card in (("1,0", "1"), ("GPU-bb", "1"), ("MIG-1111", "0"), ("MIG-2222", "1"), ("GPU-c", "GPU-c")):
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
            self.assertEqual(environment.card_in_use(CARDS), card)
        os.environ["CUDA_VISIBLE_DEVICES"] = "MIG-2222"
        self.assertEqual(machine.nvidia_smi(self.stage()), {"name": "card 1", "driver_version": "580.1"})
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.assertIn("hides all", machine.nvidia_smi(self.stage()))

    def test_a_fact_that_breaks_loses_no_other(self) -> None:
        self.program("setrank-gpu-check", "#!/bin/sh\necho '{\"name\": \"Card\", \"compute_capability\": \"9.0\"}'\n")
        self.program("nvidia-smi", "#!/bin/sh\n")
        kept, machine.libcuda = machine.libcuda, lambda: [][0]
        stage = self.stage()
        machine.run(stage)
        machine.libcuda = kept
        self.assertEqual(stage.facts["libcuda"], "IndexError: list index out of range")
        self.assertEqual(stage.facts["nvidia_smi"], "it prints nothing")
        self.assertIn("cores", stage.facts["host"])
        self.assertEqual(stage.rows[0]["status"], "passed")
        self.program("setrank-gpu-check", "#!/bin/sh\necho odd\n")
        machine.run(stage)
        self.assertEqual((stage.rows[1]["status"], stage.facts["device"]), ("error", None))

    def test_where_one_process_at_a_time_may_use_the_card_no_more_do(self) -> None:
        modes = {out: driver.compute_mode(Finished([], 0, out, "", 0.1)) for out in ("0 0\n", "0 3\n", "100 -1\n", "odd")}
        self.assertEqual(list(modes.values()), ["Default", "Exclusive_Process", "unknown", "unknown"])
        stage = self.stage()
        for mode, number in (("Default", 4), ("Exclusive_Process", 1), ("unknown", 1)):
            stage.facts["compute_mode"] = mode
            self.assertEqual(checks.at_a_time(stage), number)

    def test_pytorch_is_asked_in_the_background(self) -> None:
        slow = "import time; print('odd'); time.sleep(1); print('{\"version\": \"2\", \"available\": true}'); print('more')"
        kept = pytorch.QUESTION, pytorch.OLDEST_PYTHON
        pytorch.QUESTION, pytorch.OLDEST_PYTHON = slow, (3, 0)
        stage = self.stage()
        pytorch.begin(stage)
        self.assertEqual(pytorch.why_not(pytorch.known(stage, 0.0)), "no PyTorch: still being imported")
        self.assertEqual(pytorch.known(stage, 20.0), {"version": "2", "available": True})
        self.assertEqual(stage.facts["torch"]["version"], "2")
        pytorch.QUESTION = "print('odd')"
        pytorch.begin(stage)
        self.assertIsInstance(pytorch.known(stage, 20.0), str)
        pytorch.OLDEST_PYTHON = (99, 1)
        pytorch.begin(stage)
        self.assertIn("is older than 99.1", pytorch.known(stage, 20.0))
        pytorch.QUESTION, pytorch.OLDEST_PYTHON = kept


if __name__ == "__main__":
    unittest.main()
