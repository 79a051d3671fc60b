# SPDX-License-Identifier: Apache-2.0
"""What bench/ counts and writes, without a GPU."""

import random
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import cases
import drawn
import drawn_backward
import overview
import table


def row(peer, rate, **columns):
    return {**cases.ForwardCase("bf16", 128, False, 2, 32, 4096, kv_heads=8, kind="beyond").columns(), "peer": peer,
            "rate": rate, "ms": str(1000 / float(rate)), **columns}


def as_read(rows):
    """Rows as a CSV file gives them back."""
    return [{name: str(value) for name, value in row.items()} for row in rows]


class Cases(unittest.TestCase):
    def test_flops_of_a_window_count_every_pair_that_a_query_sees(self):
        generator = random.Random(seed := random.randrange(1 << 32))
        for _ in range(50):
            s = generator.randint(1, 60)
            window, heads = generator.randint(1, s), generator.randint(1, 4)
            pairs = sum(1 for i in range(s) for j in range(s) if 0 <= i - j < window)
            case = cases.ForwardCase("bf16", 8, True, 3, heads, s, window=window)
            self.assertEqual(case.flops, 4 * 3 * heads * 8 * pairs, f"seed {seed}, {case}")

    def test_flops_without_a_window_follow_the_paper(self):
        self.assertEqual(cases.ForwardCase("bf16", 64, False, 2, 4, 131, keys=8192).flops, 4 * 2 * 4 * 131 * 8192 * 64)
        self.assertEqual(cases.ForwardCase("bf16", 64, True, 2, 4, 100).flops, 4 * 2 * 4 * 100 * 100 * 64 // 2)

    def test_flops_of_narrow_values_count_columns_of_either_product(self):
        case = cases.ForwardCase("bf16", 192, False, 2, 4, 100, value_dim=128)
        self.assertEqual(case.flops, 2 * 2 * 4 * 100 * 100 * (192 + 128))

    def test_the_grid_of_narrow_values_has_nothing_else(self):
        grid = cases.narrow_value_grid("bf16")
        self.assertEqual({(case.d, case.dv, case.kind) for case in grid}, {(192, 128, "narrow")})
        self.assertEqual(len({cases.row_key({**case.columns(), "peer": ""}) for case in grid}), len(grid))

    def test_names_say_what_differs(self):
        self.assertEqual(str(cases.ForwardCase("fp16", 64, True, 1, 32, 512)), "fp16 d64 causal b1 h32 s512")
        self.assertEqual(str(cases.ForwardCase("bf16", 128, False, 8, 32, 131, kv_heads=8, keys=8192)),
                         "bf16 d128 full b8 h32/8 s131x8192")
        self.assertEqual(str(cases.ForwardCase("bf16", 192, True, 1, 16, 512, value_dim=128)), "bf16 d192/128 causal b1 h16 s512")
        self.assertIn("s16384 window 1024", str(cases.ForwardCase("bf16", 64, True, 1, 32, 16384, window=1024)))

    def test_no_two_cases_of_a_grid_have_one_key(self):
        grid = [case.columns() for case in cases.beyond_grid("bf16") + cases.paper_grid("bf16")]
        self.assertEqual(len({cases.row_key({**columns, "peer": ""}) for columns in grid}), len(grid))

    def test_the_beyond_grid_has_what_the_paper_leaves_out(self):
        grid = cases.beyond_grid("bf16")
        for wanted in ({"s": 3001}, {"heads": 32, "hk": 8, "s": 8192}, {"heads": 64, "hk": 8, "s": 4096},
                       {"s": 131, "sk": 8192, "hk": 8}, {"window": 1024, "s": 16384}, {"d": 80}, {"d": 96}, {"d": 192}):
            self.assertTrue([case for case in grid if all(getattr(case, name) == value for name, value in wanted.items())],
                            wanted)
        self.assertTrue(all(case.heads % case.hk == 0 and case.d % 8 == 0 for case in grid))

    def test_keys_of_rows_recorded_before_windows_are_those_of_today(self):
        old = as_read([cases.ForwardCase("bf16", 64, True, 1, 32, 512).columns() | {"peer": "fa3"}])[0]
        today = dict(old)
        del old["window"], old["dv"]
        self.assertEqual(cases.row_key(old), cases.row_key(today))


class Backward(unittest.TestCase):
    def test_cases_are_the_forwards_with_five_products(self):
        forward = cases.paper_grid("bf16") + cases.beyond_grid("bf16")
        backward = cases.backward_cases("paper", "bf16") + cases.backward_cases("beyond", "bf16")
        self.assertEqual([2.5 * case.flops for case in forward], [case.flops for case in backward])
        self.assertEqual([str(case) for case in forward], [str(case) for case in backward])
        self.assertEqual({case.kind for case in backward}, {"bwd", "bwd-beyond"})

    def test_a_row_has_its_mode_beside_its_peer(self):
        peer = cases.BACKWARD_COLUMNS.index("peer")
        self.assertEqual(cases.BACKWARD_COLUMNS[peer + 1], "mode")
        self.assertEqual([name for name in cases.BACKWARD_COLUMNS if name != "mode"], cases.COLUMNS)

    def test_the_table_shows_the_free_mode_of_each_peer(self):
        case = cases.backward_cases("paper", "bf16", [128], [512], [False])[0]
        rows = as_read([{**case.columns(), "peer": peer, "mode": mode, "rate": rate, "ms": "1"} for peer, mode, rate in
                        (("tandem", "free", "500.2"), ("tandem", "deterministic", "490"), ("cudnn", "free", "400"),
                         ("cudnn", "deterministic", "7"), ("fa3", "free", "450"))])
        lines = table.backward_rates(rows).splitlines()
        self.assertIn("| Tandem / cuDNN / FA3 | 512 | 1k | 2k | 4k | 8k | 16k |", lines)
        self.assertIn("| d128 full | 500 / 400 / 450 |  |  |  |  |  |", lines)


class DrawnBackward(unittest.TestCase):
    def test_a_seed_draws_the_same_shapes_within_the_limits(self):
        seed = random.randrange(1 << 32)
        drawn = drawn_backward.draw(seed, 60)
        self.assertEqual(drawn, drawn_backward.draw(seed, 60), f"seed {seed}")
        for case in drawn:
            own = drawn_backward.as_backward_case(case)
            self.assertEqual(case.hq % case.hk, 0, case)
            self.assertLess(2.5 * case.tflop, drawn_backward.MOST_TFLOP, case)
            self.assertEqual((own.s, own.sk, own.heads, own.hk), (case.sq, case.sk, case.hq, case.hk), f"seed {seed}, {case}")
            self.assertEqual(own.window > 0, case.mask == "window", f"seed {seed}, {case}")
        self.assertGreater(len({case.mask for case in drawn}), 2, f"seed {seed}")


class Drawn(unittest.TestCase):
    def test_a_seed_that_rows_have_is_named(self):
        rows = drawn.RECORDED / "h100/2026-11-27/drawn-9701.csv"
        files = [(seed, str(path)) for seed, path in drawn.drawn_before([9701, 10 ** 9], rows)]
        self.assertIn((9701, "results/h200/2026-11-24/drawn.csv"), files)
        self.assertNotIn((9701, "results/h100/2026-11-27/drawn-9701.csv"), files)
        self.assertIn((9701, "results/h100/2026-11-27/drawn-9701.csv"),
                      [(seed, str(path)) for seed, path in drawn.drawn_before([9701], None)])

    def test_seeds_of_the_backward_are_others(self):
        self.assertEqual(drawn.drawn_before([2003], None), [])
        self.assertTrue(drawn.drawn_before([2003], None, of_backward=True))


class Overview(unittest.TestCase):
    def test_a_ratio_is_to_the_fastest_peer_of_the_chosen_rows(self):
        benchmark = overview.Benchmark("x", "h200/x.csv", {"kind": "beyond"})
        rows = as_read([row("tandem", "500"), row("cudnn", "400"), row("fa2", "1000"), row("tandem", "300", kind="fwd"),
                        row("cudnn", "100", kind="fwd"), row("tandem", "300", window=1024)])
        self.assertEqual(overview.ratios(rows, benchmark), [0.5])

    def test_every_file_has_shapes_a_commit_and_a_day(self):
        for cells in overview.lines()[1:]:
            self.assertEqual(len(cells), len(overview.HEAD), cells)
            self.assertGreater(int(cells[4]), 0, cells)
            self.assertRegex(cells[2], r"^[0-9a-f]{7}, \d{4}-\d{2}-\d{2}$")


class Tables(unittest.TestCase):
    def test_ablation_has_a_line_for_each_peer_in_order(self):
        rows = as_read([row("tandem serial free", "500.0", kind="ablation"), row("cudnn", "640.4", kind="ablation"),
                        row("tandem", "700")])
        lines = table.ablation(rows).strip().splitlines()
        self.assertEqual(lines[2:], ["| bf16 d128 full b2 h32/8 s4096 | tandem serial free | 500 | 2.000 |",
                                     "| bf16 d128 full b2 h32/8 s4096 | cudnn | 640 | 1.562 |"])

    def test_beyond_compares_with_the_best_other_peer(self):
        rows = as_read([row("tandem", "600"), row("cudnn", "400"), row("fa2", "500"), row("tandem", "300", window=1024)])
        lines = table.beyond(rows).strip().splitlines()
        self.assertEqual(lines[2:], ["| bf16 d128 full b2 h32/8 s4096 | 600 | 400 | 500 | 1.20 |",
                                     "| bf16 d128 full b2 h32/8 s4096 window 1024 | 300 |  |  |  |"])

    def test_beyond_shows_flashattention_3_where_it_ran(self):
        rows = as_read([row("tandem", "600"), row("cudnn", "400"), row("fa3", "800"), row("tandem", "300", window=1024)])
        self.assertEqual(table.beyond(rows).strip().splitlines()[2:],
                         ["| bf16 d128 full b2 h32/8 s4096 | 600 | 400 |  | 800 | 0.75 |",
                          "| bf16 d128 full b2 h32/8 s4096 window 1024 | 300 |  |  |  |  |"])


if __name__ == "__main__":
    unittest.main()
