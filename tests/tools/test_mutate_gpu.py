# SPDX-License-Identifier: Apache-2.0
"""tools/mutate*.py, with stand-ins for the compiler, the GPU and compute-sanitizer."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

import mutate
import mutate_gpu
import mutate_table
import mutants

FORWARD, DECODE = mutate_table.of_kernel("forward"), mutate_table.of_kernel("decode")

BANNER = "========= COMPUTE-SANITIZER\n"
CLEAN = BANNER + "probe: right\n========= ERROR SUMMARY: 0 errors\n"
RACE = BANNER + """probe: wrong
========= Warning: Race reported between Write access at a.h:3 and Read access at b.h:4 [512 hazards]
=========     Saved host backtrace up to driver entry point at kernel launch time
========= Target application returned an error
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
INVALID = BANNER + """========= Invalid __shared__ read of size 4 bytes
=========     at forward_kernel+0x10
========= ERROR SUMMARY: 3 errors
"""
UNFINISHED = BANNER + "========= Barrier error detected. Invalid arguments\n=========     at x\nprobe: hang\n"
HANG = BANNER + "probe: hang\n========= Error: process didn't terminate successfully\n"
NO_DEVICE = BANNER + "========= Error: Device not supported\n"

NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA H200, 580.1'\n"
# Objects are empty files. A program is a script that behaves as its mutated pipeline.h demands.
NVCC = r"""#!/bin/sh
include= depends= out= source=
while [ $# -gt 0 ]; do
  case $1 in
    -I*) include="$include ${1#-I}" ;;
    -MF) depends=$2; shift ;;
    -o) out=$2; shift ;;
    *.cu) source=$1 ;;
  esac
  shift
done
case $out in  # an object, or a program
  *.o)
    : > "$out"
    set -- $include
    if [ -n "$depends" ]; then find "$1" -name '*.h' > "$depends"; fi
    if grep -rqs 'bytes / 2' "$1/tile/pipeline.h"; then echo 'error: no such thing' >&2; exit 2; fi
    exit 0 ;;
esac
folder=$(dirname "$out")
behaviour=right
if [ -e "$folder/src/tile/pipeline.h" ]; then behaviour=wrong; fi
if [ -e "$folder/src/tile/pipeline.h" ] && ! grep -q 'empty\[at.stage\], at.parity ^ 1u' "$folder/src/tile/pipeline.h"; then
  behaviour=hang
fi
case $behaviour in
  right) commands='echo "probe: right"' ;;
  wrong) commands='echo "probe: wrong"; exit 1' ;;
  hang) commands='exec sleep 60' ;;
esac
printf '#!/bin/sh\n%s\n' "$commands" > "$out"
chmod +x "$out"
"""
SANITIZER = """#!/bin/sh
[ "$1" = --version ] && { echo 'Version 2025.3.1'; exit; }
[ "$1" = --help ] && { echo '  --port arg (=49152)'; exit; }
tool=$2
[ "$3" = --port ] || exit 9
shift 4
echo "========= COMPUTE-SANITIZER"
said=$("$@")
echo "$said"
if [ $tool = "$BROKEN_TOOL" ]; then echo "========= Error: Device not supported"; exit 1; fi
if [ $tool = racecheck ] && [ "$said" = "probe: wrong" ]; then
  echo "========= Error: Race reported between Write access at a and Read access at b"
  echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
else
  echo "========= ERROR SUMMARY: 0 errors"
fi
"""


class OutcomesTest(unittest.TestCase):
    def test_a_plain_run_tells_by_its_exit_code(self):
        for code, outcome in ((0, "right"), (1, "wrong result"), (2, "CUDA error"), (3, "hang"), (None, "hang")):
            self.assertEqual(mutate_gpu.plain_outcome(code, "probe: ..."), outcome)
        self.assertEqual(mutate_gpu.plain_outcome(-11, "a\nlast words\n"), "failed: exit code -11 last words")

    def test_a_tool_tells_by_what_it_reports(self):
        for code, output, outcome in (
                (0, CLEAN, "clean"), (1, CLEAN.replace("right", "wrong"), "clean"),
                (1, RACE, "reports: Warning: Race reported between Write access at a.h:3 and Read access at b.h:4 "
                          "[512 hazards]"),
                (1, INVALID, "reports: Invalid __shared__ read of size 4 bytes"),
                (3, UNFINISHED, "reports: Barrier error detected. Invalid arguments"),
                (None, INVALID.rpartition("=========")[0], "reports: Invalid __shared__ read of size 4 bytes"),
                (3, HANG, "hang"), (None, BANNER, "hang"), (2, CLEAN.replace("right", "CUDA error: x"), "CUDA error"),
                (1, NO_DEVICE, "failed: ========= Error: Device not supported"), (127, "", "failed: no output")):
            with self.subTest(output=output):
                self.assertEqual(mutate_gpu.tool_outcome(code, output), outcome)

    def test_what_another_column_contradicts_is_looked_at_again(self):
        def row(*cells):
            return dict(zip(("plain", *mutate_gpu.TOOLS), cells))
        self.assertEqual(mutate_gpu.doubtful(row("hang", "hang", "hang", "hang")), [])
        self.assertEqual(mutate_gpu.doubtful(row("right", "hang", "clean", "failed: x")), ["memcheck", "synccheck"])
        self.assertEqual(mutate_gpu.doubtful(row("CUDA error", "reports: x", "clean", "clean")), ["plain"])
        self.assertEqual(mutate_gpu.doubtful(row("wrong result", "reports: x", "unusable", "clean")), [])


class ProbesTest(unittest.TestCase):
    def test_no_mutant_is_stale_and_each_meets_variants_of_its_own(self):
        self.assertTrue(mutate.check_table())
        for mutant in FORWARD:
            variants = mutate_gpu.variants_of(mutant)
            self.assertEqual({v.head_dim for v in variants}, {mutant.head_dim}, mutant.name)
            overlap = re.search(r"overlap_(\w+)\.h", mutant.file)
            if overlap:
                self.assertEqual({v.overlap for v in variants}, {overlap.group(1)}, mutant.name)
            if mutant.kind == "turn":
                self.assertEqual({v.turn for v in variants}, {"pingpong"}, mutant.name)
            if mutant.where == "consumer_registers":
                self.assertEqual({v.block_m for v in variants}, {192}, mutant.name)


class HostSourcesTest(unittest.TestCase):
    def test_what_they_include_of_tests_is_linked_too(self):
        """A header of tests that has a source beside it asks for that source."""
        root, seen, left = mutate_gpu.ROOT, set(), list(mutate_gpu.HOST_SOURCES)
        while left:
            file = left.pop()
            if file in seen or not (root / file).exists():
                continue
            seen.add(file)
            left += re.findall(r'^#include "(tests/[^"]+)"', (root / file).read_text(), re.MULTILINE)
        beside = {file.removesuffix(".h") + ".cpp" for file in seen if file.endswith(".h")}
        self.assertEqual({file for file in beside if (root / file).exists()} - set(mutate_gpu.HOST_SOURCES), set())


class CopyTest(unittest.TestCase):
    def test_a_copy_keeps_the_kernels_of_one_head_dim(self):
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary)
            for folder in ("src/forward", "src/decode"):
                shutil.copytree(mutate.ROOT / folder, copy / folder)
            for head_dim in mutate.HEAD_DIMS[1:]:
                mutate.leave_out(copy, head_dim)
            table = (copy / "src/forward/table.h").read_text()
            self.assertEqual(re.findall(r"operator\(\)<(\d+)>\(\);", table), ["64"])
            self.assertIn("foreach(head_dim 64)", (copy / "src/forward/groups.cmake").read_text())
            self.assertIn("set(groups Group<64> ListedGroup<64> EightBitGroup<64> HadamardGroup<64> Int8Group<64>)\n"
                          "set(small_groups SharingGroup<64> PairedGroup<64> CombineGroup PlanGroup PrefixListGroup ClearGroup)", (copy / "src/decode/groups.cmake").read_text())
            table = (copy / "src/decode/table.h").read_text()
            self.assertEqual(re.findall(r"all\.template operator\(\)<(\d+)>\(\);", table), ["64"])
            with self.assertRaises(SystemExit):
                mutate.leave_out(copy, 96)  # which is gone

    def test_a_mutant_is_shown_by_the_kernels_that_its_file_is_of(self):
        forward, decode = ({m.file for m in own} for own in (FORWARD, DECODE))
        self.assertTrue({"src/tile/pipeline.h", "src/forward/kernel.h"} <= forward)
        self.assertTrue({"src/decode/partials.h", "src/core/stream_k.h"} <= decode)
        self.assertFalse(forward & decode)


class RunTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        (self.root / "path").mkdir()
        for name, text in (("nvidia-smi", NVIDIA_SMI), ("nvcc", NVCC), ("compute-sanitizer", SANITIZER)):
            (self.root / "path" / name).write_text(text)
            (self.root / "path" / name).chmod(0o755)

    def run_tool(self, only, **environment):
        """The finished process and {mutant: row} of the rows that are not of unmutated kernels."""
        code = ("import sys, mutate_gpu as m; m.PLAIN_PATIENCE = m.TOOL_PATIENCE = 0; m.START_SECONDS = 2; "
                "sys.exit(m.main())")
        done = subprocess.run([sys.executable, "-c", code, "--work", self.root / "work", "--out", self.root / "out.csv",
                               "--only", only], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": str(TOOLS), "PYTHONDONTWRITEBYTECODE": "1",
                                   "PATH": f"{self.root}/path:{os.environ['PATH']}", **environment})
        if not (self.root / "out.csv").exists():
            return done, {}
        with open(self.root / "out.csv", newline="") as file:
            rows = {row["mutant"]: row for row in csv.DictReader(file) if row["kind"] != mutate_gpu.UNMUTATED}
        return done, rows

    def test_each_mutant_gets_a_row_and_keeps_it(self):
        done, rows = self.run_tool("every lane releases")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        row = rows["every lane releases the stage"]
        self.assertEqual([row[name] for name in ("kind", "head_dim", "plain", "memcheck", "synccheck")],
                         ["arrival", "64", "wrong result", "clean", "clean"])
        self.assertTrue(row["racecheck"].startswith("reports: Error: Race reported between"))
        self.assertIn("1 mutants; compute-sanitizer reports 1", done.stdout)
        done, again = self.run_tool("stage")
        self.assertEqual(again["every lane releases the stage"], row)
        self.assertGreater(len(again), 5)

    def test_a_hang_is_one_and_a_mutant_that_does_not_build_says_so(self):
        done, rows = self.run_tool("no wait for an empty stage")
        self.assertEqual({rows["no wait for an empty stage"][how] for how in ("plain", *mutate_gpu.TOOLS)}, {"hang"})
        done, rows = self.run_tool("half of the bytes")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(rows["half of the bytes expected"]["plain"], "did not build")

    def test_mutants_of_decode_are_left_out(self):
        done, rows = self.run_tool("no fence before the scores")  # one of the forward, three of decode
        self.assertIn("left out: 3 mutants of other kernels", done.stderr)
        self.assertEqual(list(rows), ["no fence before the scores"])
        (self.root / "out.csv").unlink()
        done, rows = self.run_tool(DECODE[0].name)
        self.assertEqual((done.returncode, rows), (2, {}))
        self.assertIn("no mutant of the forward kernels", done.stderr)

    def test_a_tool_that_fails_on_the_unmutated_kernels_tells_nothing(self):
        done, rows = self.run_tool("every lane releases", BROKEN_TOOL="racecheck")
        self.assertIn("WARNING", done.stderr)
        self.assertEqual(rows["every lane releases the stage"]["racecheck"], "unusable")


class TableTest(unittest.TestCase):
    def test_the_table_counts_what_each_side_sees(self):
        simulator = {m.name: {"outcome": "caught", "by": "deadlock"} for m in mutants.MUTANTS}
        gpu = {m.name: {"plain": "right", "memcheck": "clean", "racecheck": "clean", "synccheck": "unusable"}
               for m in FORWARD}
        waits = [m.name for m in FORWARD if m.kind == "wait"]
        gpu[waits[0]].update(plain="hang", racecheck="reports: Error: Race")
        gpu[waits[1]].update(plain="CUDA error", memcheck="reports: Program hit cudaErrorIllegalInstruction")
        gpu[waits[2]].update(plain="wrong result", memcheck="hang")
        gpu[waits[3]].update(memcheck="reports: Invalid read")
        simulator[DECODE[0].name].update(outcome="passed", by="")
        simulator[DECODE[1].name].update(by="wrong result")
        count, others = len(FORWARD), len(DECODE)
        forward, found, decode = mutate_table.scores(simulator, gpu).partition("The decode kernels' mutants")
        self.assertTrue(found)
        self.assertIn(f"| wait | {len(waits)} | {len(waits)} | 3 | 3 |", forward)
        self.assertIn(f"| **all** | **{count}** | **{count}** | **3** | **3** |", forward)
        self.assertIn(f"The simulator catches **{count} of {count}**", forward)
        self.assertIn(f"reports **3 of {count}** (memcheck 2, racecheck 1, synccheck 0), 1 of them only by", forward)
        self.assertIn(f"Neither shows {count - 4}.", forward)
        self.assertIn(f"synccheck on {count}", forward)
        self.assertIn(f"| **all** | **{others}** | **{others - 1}** |\n", decode)
        self.assertIn(f"**{others - 1} of {others}**: {others - 2} by a named fault, 1 by a wrong result.", decode)
        self.assertNotIn("sanitizer", decode.partition("Every row")[0].partition("\n")[2])

    def test_a_table_with_a_mutant_that_there_is_not_is_refused(self):
        names = [m.name for m in FORWARD]
        rows = dict.fromkeys([*names[1:], "no such mutant"])
        self.assertEqual(len(mutate_table.unknown(Path("x.csv"), rows, FORWARD)), 1)
        self.assertEqual(mutate_table.unknown(Path("x.csv"), dict.fromkeys(names), FORWARD), [])

    def test_mutants_that_were_never_run_are_counted_apart(self):
        simulator = mutate_table.read(mutate_table.SIMULATOR)
        some = next(iter(m.name for m in mutate_table.MUTANTS if m.kernel == "decode" and m.name in simulator))
        without = {name: row for name, row in simulator.items() if name != some}
        before, after = (mutate_table.scores(rows, {}) for rows in (simulator, without))
        self.assertNotEqual(before, after)
        new = sum(m.kernel == "decode" and m.name not in without for m in mutate_table.MUTANTS)
        self.assertRegex(after, rf"not run yet: \d+ \(.*decode {new}\b")

    def test_only_what_lies_between_the_marks_changes(self):
        page = f"before\n{mutate_table.BEGIN}old\n{mutate_table.END}after\n"
        self.assertEqual(mutate_table.with_scores(page, "new\n"), page.replace("old", "new"))
        with self.assertRaises(SystemExit):
            mutate_table.with_scores("no marks", "new\n")


if __name__ == "__main__":
    unittest.main()
