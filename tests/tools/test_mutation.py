# SPDX-License-Identifier: Apache-2.0
"""tools/mutation: what it finds in C++ source, what it draws, and how places are told by construct."""

import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from mutation import coverage, drawn, located
from mutation.source import Source, Span
from mutation.workshop import SEQUENCE

CODE = """#pragma once
/// if (a < b) hidden();
template <int n>
TANDEM_DEVICE void feed(Pipeline<n>& pipeline, int count) {
  const int first = pipeline.at[stage];
  hw::fence_async_proxy();
  if (hw::lane_index() == 0) hw::barrier_arrive(pipeline.full[stage]);
  hw::sync_warp();
  TANDEM_UNROLL
  for (int i = 0; i < count; ++i) {
    total += i;
  }
  hw::set_role("feeder");
  visit([&](int k) { hw::store_global(k, 1u); });
}

struct Steps {
  int parity = 0;
  void advance() { parity ^= 1; }
};
"""


def texts(spans):
    return [CODE[s.begin:s.end] for s in spans]


def changes(operator):
    return [drawn.Drawn("", "", 0, "", edits, what, (0, 0)).apply(CODE) for _, _, edits, what in operator(Source(CODE))]


class SourceTest(unittest.TestCase):
    def test_functions_have_bodies_and_names(self):
        self.assertEqual([f.name for f in Source(CODE).functions], ["feed", "advance"])

    def test_statements_are_those_that_may_go(self):
        self.assertEqual(texts(Source(CODE).statements),
                         ["hw::fence_async_proxy();", "hw::barrier_arrive(pipeline.full[stage]);", "hw::sync_warp();",
                          "total += i;", 'hw::set_role("feeder");', "visit([&](int k) { hw::store_global(k, 1u); });",
                          "hw::store_global(k, 1u);", "parity ^= 1;"])

    def test_comments_and_strings_are_no_code(self):
        self.assertNotIn("hidden", Source(CODE).code)
        self.assertEqual(len(Source(CODE).code), len(CODE))


class OperatorsTest(unittest.TestCase):
    def test_each_operator_changes_one_place(self):
        for operator in drawn.OPERATORS:
            with self.subTest(operator.__name__):
                found = changes(operator)
                self.assertEqual(len(set(found)), len(found))
                self.assertNotIn(CODE, found)

    def test_a_removed_statement_leaves_an_empty_one(self):
        self.assertIn(CODE.replace("hw::sync_warp();", ";"), changes(drawn.removed))

    def test_assignments_apart_are_not_swapped(self):
        self.assertTrue(drawn.are_apart("a.x = f(1);", "a.y = f(2);"))
        for first, second in (("x = y;", "y = 2;"), ("x += 1;", "y = x;"), ("x = hw::lane_index();", "y = 2;"), ("x = 1;", "f(2);")):
            self.assertFalse(drawn.are_apart(first, second), (first, second))

    def test_hints_are_left_alone(self):
        self.assertTrue(all("set_role" in text for text in changes(drawn.removed)))

    def test_comparisons_and_conditions_and_constants_are_off(self):
        self.assertIn(CODE.replace("i < count", "i <= count"), changes(drawn.compared))
        self.assertIn(CODE.replace("if (hw::lane_index() == 0)", "if (!(hw::lane_index() == 0))"), changes(drawn.negated))
        self.assertIn(CODE.replace("(k, 1u)", "(k, 2u)"), changes(drawn.off_by_one))

    def test_a_name_becomes_its_neighbour_and_a_slot_the_next(self):
        self.assertIn(CODE.replace("pipeline.full[stage]", "pipeline.empty[stage]"), changes(drawn.replaced))
        self.assertIn(CODE.replace("pipeline.full[stage]", "pipeline.full[stage ^ 1]"), changes(drawn.replaced))


class DrawTest(unittest.TestCase):
    files = [f for f in drawn.device_files(ROOT) if f.startswith(("src/tile/", "src/decode/"))]

    def test_a_seed_draws_the_same_again_and_another_others(self):
        names = [[m.name for m in drawn.draw(ROOT, self.files, 20, seed)] for seed in (1, 1, 2)]
        self.assertEqual(names[0], names[1])
        self.assertNotEqual(names[0], names[2])
        self.assertEqual(len(set(names[0])), 20)

    def test_every_operator_is_drawn(self):
        self.assertEqual({m.operator for m in drawn.draw(ROOT, self.files, 60, 1)},
                         {"removed", "swapped", "moved", "comparison", "constant", "negated", "replaced"})

    def test_all_folders_of_kernels_are_walked(self):
        folders = {Path(f).parent.name for f in drawn.device_files(ROOT)}
        kernels = {p.parent.name for p in (ROOT / "src").glob("*/kernel.h")} - {"launch"}
        self.assertTrue(kernels <= folders, kernels - folders)
        self.assertTrue({"core", "tile"} <= folders)

    def test_tables_of_kernels_are_found_to_be_reduced(self):
        headers = [h for folder in ("apps/sim", "src/launch") for h in (ROOT / folder).glob("*.h")]
        made = [h for h in headers if re.search(r"make_index_sequence<.*size\(\)>", h.read_text())]
        self.assertTrue(made)
        for header in made:
            self.assertEqual(len(SEQUENCE.findall(header.read_text())), header.read_text().count("make_index_sequence<"), header)


def test_of(name, seconds, places, passed=True):
    return coverage.Test(name, seconds, passed, set(places))


class CoverageTest(unittest.TestCase):
    def setUp(self):
        rows = ["Feed.First 10 1 a b", "All/Feed.Second/d64 20 1 b", "All/Feed.Second/d96 30 0 a b c", "Other.Third 40 1 d"]
        with tempfile.NamedTemporaryFile("w", suffix=".report") as report:
            report.write("\n".join(rows) + "\n")
            report.flush()
            lines = {0xa: 5, 0xb: 8, 0xc: 20, 0xd: 40}
            found = [(place, Path("/repository/src/feed.h"), line) for place, line in lines.items()]
            with mock.patch.object(coverage, "frames", lambda program, places: found):
                self.covered = coverage.Coverage("", report.name, (Path("/repository"),))

    def names(self, file, line, function):
        return [(far, test.name) for far, test in self.covered.tests_of(file, line, function)]

    def test_a_mutant_is_for_the_tests_that_come_to_its_function_and_pass(self):
        self.assertEqual(self.names("src/feed.h", 9, (4, 12)), [(0, "Feed.First"), (0, "All/Feed.Second/d64")])
        self.assertEqual(self.names("src/feed.h", 6, (4, 12)), [(0, "Feed.First"), (1, "All/Feed.Second/d64")])

    def test_what_no_test_comes_to_is_for_all_of_them(self):
        everyone = [(0, "Feed.First"), (0, "All/Feed.Second/d64"), (0, "Other.Third")]
        self.assertEqual(self.names("src/feed.h", 100, (90, 110)), everyone)
        self.assertEqual(self.names("src/other.h", 9, (4, 12)), everyone)

    def test_each_kind_has_its_turn_in_variants_that_none_has_had(self):
        tests = [(0, test_of(f"All/{kind}/{variant}", seconds, ()))
                 for kind, variant, seconds in (("A.X", "d64", 1), ("A.X", "d96", 2), ("A.Y", "d64", 3), ("A.Y", "d96", 4))]
        self.assertEqual([t.name for t in coverage.in_turn(tests)], ["All/A.X/d64", "All/A.Y/d96", "All/A.X/d96", "All/A.Y/d64"])

    def test_the_nearest_come_first(self):
        tests = [(1, test_of("A.Quick", 1, ())), (0, test_of("A.Slow", 9, ()))]
        self.assertEqual([t.name for t in coverage.in_turn(tests)], ["A.Slow", "A.Quick"])

    def test_a_budget_takes_one_test_at_least(self):
        tests = [test_of("A", 5, ()), test_of("B", 1, ()), test_of("C", 1, ())]
        self.assertEqual([[t.name for t in part] for part in coverage.within(tests, 3)], [["A"], ["B", "C"]])
        self.assertEqual([[t.name for t in part] for part in coverage.within(tests, 6)], [["A", "B"], ["C"]])

    def test_those_that_draw_are_known_by_their_names(self):
        self.assertTrue(test_of("Variants/F.EqualsTheOracleUnderEveryPolicy/d64", 1, ()).draws)
        self.assertTrue(test_of("F.EqualsTheOracleUnderEveryPolicy", 1, ()).draws)
        self.assertFalse(test_of("Variants/F.StaysTogether/d64", 1, ()).draws)


class LocatedTest(unittest.TestCase):
    def changed(self, where, change):
        located.regions.cache_clear(), located.At.find.cache_clear()
        with mock.patch.object(located, "sources", lambda: {"src/tile/feed.h": Source(CODE)}):
            return located.change(where, change)[1]

    def tearDown(self):
        located.regions.cache_clear(), located.At.find.cache_clear()

    def test_changes_are_made_where_they_are_told(self):
        for change, old, new in ((located.Remove("sync_warp"), "hw::sync_warp();", ";"),
                                 (located.Edit("full[ stage ]", "full[0]"), "full[stage]", "full[0]"),
                                 (located.Before("sync_warp", 1, "now();"), "hw::sync_warp();", "now(); hw::sync_warp();")):
            self.assertEqual(self.changed("feed", change), CODE.replace(old, new))
        self.assertEqual(self.changed("Steps", located.Edit("parity = 0", "parity = 1")), CODE.replace("parity = 0", "parity = 1"))

    def test_swapped_statements_change_places(self):
        swapped = self.changed("feed", located.Swap(("fence_async_proxy", 1), ("sync_warp", 1)))
        self.assertLess(swapped.index("sync_warp"), swapped.index("fence_async_proxy"))

    def test_a_place_that_is_no_more_is_stale(self):
        for where, change in (("feed", located.Remove("sync_warp", 2)), ("gone", located.Remove("sync_warp")),
                              ("feed", located.Edit("nothing", ""))):
            with self.assertRaises(located.Stale):
                self.changed(where, change)


if __name__ == "__main__":
    unittest.main()
