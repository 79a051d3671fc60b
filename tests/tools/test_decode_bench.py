#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/decode.py, and the tables that bench/decode_table.py makes of its rows."""

import csv
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

import decode_cases as cases  # noqa: E402
import decode_table  # noqa: E402
import marks  # noqa: E402


def row(case, us, peer="tandem", kernel="auto"):
    return {**dict.fromkeys(cases.DECODE_COLUMNS, ""), **case.columns(), "peer": peer, "kernel": kernel,
            "us": us and f"{us:.2f}", "rate": us and f"{case.gigabytes(us * 1e-3):.0f}"}


class Cases(unittest.TestCase):
    def test_the_grid_is_whole_and_begins_with_what_tells_most(self):
        grid = cases.grid("bf16")
        wanted = {(b, cache, hq) for b in cases.BATCHES for cache in cases.CACHES for hq in cases.HEADS}
        self.assertEqual({(c.b, c.longest, c.hq) for c in grid}, wanted)
        self.assertEqual(len(grid), len(wanted))
        self.assertEqual([(c.b, c.longest, c.hq) for c in grid[:len(cases.TELLING)]], list(cases.TELLING))

    def test_any_beginning_has_its_share_of_every_part(self):
        everything = cases.chosen(list(cases.PARTS), ["bf16", "fp16"])
        self.assertEqual({c.part for c in everything[:len(cases.PARTS)]}, set(cases.PARTS))
        self.assertEqual([c.dtype for c in everything], sorted(c.dtype for c in everything))  # bf16 first

    def test_ragged_batches_stand_beside_the_same_tokens_spread_evenly(self):
        ragged = cases.ragged("bf16")
        for case in ragged:
            if case.ragged:
                even = [c for c in ragged if not c.ragged and c.b == case.b]
                self.assertTrue(any(abs(c.read_bytes / case.read_bytes - 1) < 0.01 for c in even), case)

    def test_bytes_are_keys_and_values(self):
        case = cases.even("grid", "bf16", 1, 8192, 32)
        self.assertEqual(case.read_bytes, 2 * 8192 * 8 * 128 * 2)
        self.assertAlmostEqual(case.gigabytes(0.01), case.read_bytes / 1e-5 / 1e9)


class Tables(unittest.TestCase):
    def tables(self, *rows):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "decode.csv")
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, cases.DECODE_COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
            return decode_table.tables(decode_table.read_rows(path))

    def test_a_grid_cell_compares_with_the_best_peer_that_ran(self):
        case = cases.even("grid", "bf16", 1, 8192, 32)
        text = self.tables(row(case, 10), row(case, 15, "cudnn", ""), row(case, 12, "cudnn_packed", ""),
                           row(case, "", "fa2", ""))
        self.assertIn("| 1 × 8k |  | 10.0 µs, 3355, 1.20× |  |  |", text)

    def test_pages_are_compared_with_the_contiguous_cache(self):
        rows = [row(cases.even("paged", "bf16", 1, 8192, 32, page), us) for page, us in ((0, 10), (64, 10.2), (16, 11))]
        self.assertIn("| 1 × 8k | 10.0 | 10.2 (+2.0 %) | 11.0 (+10.0 %) |", self.tables(*rows))

    def test_ragged_batches_find_their_plan_and_their_even_twin(self):
        case, even = cases.ragged("bf16")[:2]
        text = self.tables(row(case, 30), row(case, 25, "tandem_planned"), row(even, 24))
        self.assertIn("| 1 × 16384 + 15 × 64 | 30.0 | 25.0 | 24.0 |", text)

    def test_the_fastest_kernel_is_bold(self):
        case = cases.groups("bf16")[0]
        times = zip((*cases.KERNELS, "auto"), (12, 9, 10, 9.5))
        text = self.tables(*(row(case, us, kernel=kernel) for kernel, us in times))
        self.assertIn("| 1 × 8k | 1 | 12.0 | **9.0** | 10.0 | 9.5 |", text)

    def test_what_was_not_measured_has_no_table(self):
        self.assertEqual(self.tables().strip(), "")

    def test_the_page_has_the_marks(self):
        text = decode_table.PAGE.read_text()
        self.assertIn("written here", marks.between(text, decode_table.MARKS, "written here\n"))


if __name__ == "__main__":
    unittest.main()
