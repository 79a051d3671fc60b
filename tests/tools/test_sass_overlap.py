# SPDX-License-Identifier: Apache-2.0
"""tools/sass_overlap on recorded SASS: one small kernel of each overlap policy."""

import csv
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/sass_overlap"
DATA = Path(__file__).resolve().parent / "data"
LISTING = (DATA / "overlaps.sass").read_text()
VARIANTS = (DATA / "overlaps.csv").read_text()
EXPONENTIALS = 10  # 16 keys a block: 8 scores a thread, and the factors of its two rows


def run(*arguments, listing=LISTING, variants=VARIANTS):
    with tempfile.TemporaryDirectory() as folder:
        sass, table = Path(folder, "listing.sass"), Path(folder, "variants.csv")
        sass.write_text(listing)
        table.write_text(variants)
        return subprocess.run([sys.executable, TOOL, "--sass", sass, "--variants", table, *arguments],
                              capture_output=True, text=True)


def rows():
    """{(overlap, product): row}"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        done = run("--csv", path)
        assert done.returncode == 0, done.stderr
        with path.open() as file:
            return {(row["variant"].split()[3], row["in_flight"]): row for row in csv.DictReader(file)}


class SassOverlap(unittest.TestCase):
    def test_counts_the_exponentials_in_flight_with_each_product(self):
        found = rows()
        self.assertEqual(len(found), 6)
        expected = {("serial", "Q K^T"): 0, ("serial", "P V"): 0, ("two-stage", "Q K^T"): 0,
                    ("two-stage", "P V"): EXPONENTIALS, ("three-stage", "Q K^T"): EXPONENTIALS,
                    ("three-stage", "P V"): EXPONENTIALS}
        self.assertEqual({key: int(row["exp2"]) for key, row in found.items()}, expected)
        self.assertEqual(int(found["two-stage", "P V"]["max"]), 12)  # 8 scores, and 2 exchanges for each row
        self.assertEqual(float(found["three-stage", "P V"]["share"]), 1)

    def test_the_recorded_kernels_pass_the_check(self):
        done = run("--check")
        self.assertEqual((done.returncode, done.stdout), (0, "3 kernels overlap as their policies say\n"), done.stderr)

    def test_products_are_told_apart_where_probabilities_come_from_shared_memory_too(self):
        shared, places = re.subn(r"(HGMMA\S* R\d+), R\d+, (gdesc\[UR\d+\]\.tnspB)", r"\1, \2", LISTING)
        self.assertGreater(places, 0)
        done = run("--check", listing=shared)
        self.assertEqual((done.returncode, done.stdout), (0, "3 kernels overlap as their policies say\n"), done.stderr)

    def test_a_loop_whose_lanes_may_part_fails(self):
        parted, places = re.subn(r"^(\s*/\*[0-9a-f]+\*/\s+)WARPGROUP\.DEPBAR", r"\1BSSY B0, 0x10 ;\n\1WARPGROUP.DEPBAR",
                                 LISTING, flags=re.MULTILINE)
        self.assertGreater(places, 0)
        done = run("--check", listing=parted)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("two-stage", done.stderr)
        self.assertIn("the loop's lanes may part (BSSY)", done.stderr)
        self.assertNotIn("serial", done.stderr)

    def relabelled(self, before, after):
        return run("--check", variants=VARIANTS.replace(before, after))

    def test_a_kernel_that_does_not_overlap_as_its_policy_says_fails(self):
        for before, after, words in (("serial", "two-stage", "0% of the loop's max are issued while P V is in flight"),
                                     ("two-stage", "three-stage", "while Q K^T is in flight, not 75%"),
                                     ("three-stage", "serial", "while P V is in flight, which is to be waited for")):
            with self.subTest(before):
                done = self.relabelled(before, after)
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, done.stderr)

    def test_a_wait_that_moved_up_is_found(self):
        # What ptxas does to a two-stage loop whose wait is not pinned: it waits for all groups at once.
        lines = LISTING.splitlines()
        first = next(i for i, line in enumerate(lines) if "gsb0, 0x1 ;" in line)
        lines[first] = lines[first].replace("gsb0, 0x1", "gsb0, 0x0")
        done = run("--check", listing="\n".join(lines))
        self.assertEqual(done.returncode, 1)
        self.assertIn("two-stage free 128x16: 0% of the loop's max are issued while P V is in flight", done.stderr)

    def test_exponentials_that_are_to_come_early_are_asked_for(self):
        early = "".join(line + (",begins_early" if i == 0 else f",{int('two-stage' in line)}") + "\n"
                        for i, line in enumerate(VARIANTS.splitlines()))
        self.assertEqual(run("--check", variants=early).returncode, 0)
        waits = LISTING.replace("gsb0, 0x1 ;", "gsb0, 0x0 ;")
        done = run("--check", variants=early, listing=waits)
        self.assertEqual(done.returncode, 1)
        self.assertIn("two-stage free 128x16: 0% of the loop's max are issued while P V is in flight, not 75% or more; 0% of the "
                      "loop's exp2 are issued while P V is in flight, not 10% or more", done.stderr)

    def test_kernel_and_table_have_to_fit(self):
        missing = run("--check", variants=VARIANTS + "64,1,3,fp16,band,0,serial,free,128,16,2\n")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("no kernel in the listing for: fp16 d64 band serial free 128x16", missing.stderr)
        unknown = run("--check", variants="".join(VARIANTS.splitlines(keepends=True)[:-1]))
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("is not in the table of variants", unknown.stderr)
        loopless = run("--check", listing=LISTING.replace("HGMMA.64x64", "IADD3.64x64"))
        self.assertEqual(loopless.returncode, 1)
        self.assertIn("has no loop with both products", loopless.stderr)

    def test_without_cuobjdump_it_says_that_nothing_was_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "tools/sass_overlap")
            copy.parent.mkdir()
            for file in (copy, copy.with_name("cuobjdump.py")):
                file.write_bytes((TOOL.parent / file.name).read_bytes())
            environment = {name: value for name, value in os.environ.items() if name not in ("CUOBJDUMP", "CUDA_HOME")}
            done = subprocess.run([sys.executable, copy, "--check", folder], capture_output=True, text=True,
                                  env=environment | {"PATH": folder})
        self.assertEqual(done.returncode, 77)
        self.assertIn("NOT CHECKED", done.stderr)


if __name__ == "__main__":
    unittest.main()
