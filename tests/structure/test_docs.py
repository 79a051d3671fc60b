#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds small pages that are not true to docs.py and sees that they are named."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import docs  # noqa: E402

SOURCE = """// A kernel.
/// Line 1: begins.
void begin();

/// Lines 2-9.
template <int n>
void start(int a) {
  f(a);  // line 2
}

void walk(int a) {
  for (;;) {  // lines 3, 4
    g(a);     // line 5 for K
  }
}
"""
HEAD = "| line | what | stands in |\n|---|---|---|\n"


class Docs(unittest.TestCase):
    def complaints(self, page, path="docs/algorithms/1-x.md"):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {"src/a.h": SOURCE, "tests/gpu/record.json": "{}", path: page}.items():
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return list(docs.check_tree(root))

    def prose(self, page):
        return self.complaints(page, "docs/notes/x.md")

    def assert_named(self, page, *words):
        self.assert_one(self.complaints(page), words)

    def assert_one(self, complaints, words):
        self.assertEqual(len(complaints), 1, complaints)
        for word in words:
            self.assertIn(word, complaints[0])

    def test_a_true_page(self):
        page = (HEAD + "| 1 | begin | [`begin`](../../src/a.h) |\n| 2 | start | [`start`](../../src/a.h) |\n| 3-5 | walk | [`walk`](../../src/a.h) |\n"
                "| 6 | end | |\n\n# A heading, here\n[that](#a-heading-here) [far](https://example.org/a)\n")
        self.assertEqual(self.complaints(page), [])

    def test_a_link_to_nothing(self):
        self.assert_one(self.prose("\n[a](../b.md)\n"), ["x.md:2:", "../b.md"])
        self.assert_one(self.prose("[a](#nowhere)\n"), ["heading"])
        self.assertEqual(self.prose("```\n[a](../b.md)\n```\n"), [])

    def test_a_name_that_is_gone(self):
        self.assert_one(self.prose("[`halt`](../../src/a.h)\n"), ["halt"])
        self.assertEqual(self.prose("[`tile::walk`](../../src/a.h), [`walk`](../../src/a.h)\n"), [])

    def test_counts_beside_the_gpu_record(self):
        link = "[The record](../../tests/gpu/record.json)"
        self.assert_one(self.prose(f"A.\n\n{link} is of an H100:\n1,019 tests passed.\n"), ["x.md:3:", "1,019 tests"])
        self.assert_one(self.prose(f"188 were clean under memcheck ({link}).\n"), ["188 were clean"])
        self.assertEqual(self.prose(f"{link} says on which of 2 cards.\n\n188 tests then.\n"), [])

    def test_a_line_that_moved(self):
        self.assert_named(HEAD + "| 1-3 | begin | [`begin`](../../src/a.h), [`start`](../../src/a.h) |\n", "line 3")
        self.assert_named(HEAD + "| 1 | begin | [`begin`](../../src/a.h), [`walk`](../../src/a.h) |\n", "`walk`")

    def test_a_name_that_is_no_function(self):
        self.assert_named(HEAD + "| 1 | begin | [`n`](../../src/a.h) |\n", "no function")

    def test_a_line_that_is_left_out(self):
        self.assert_named("# An algorithm without a table\n", "no row for line 1")
        self.assert_named(HEAD + "| 2 | begin | [`start`](../../src/a.h) |\n", "no row for line 1")

    def test_lines_of_another_algorithm(self):
        row = "| 1 | begin | [`walk`](../../src/a.h), as line {} of Algorithm 7 |\n"
        self.assertEqual(self.complaints(HEAD + row.format(4)), [])
        self.assert_named(HEAD + row.format(2), "line 2")

    def test_numbers(self):
        self.assertEqual(docs.numbers("4, 7-9 and 12"), {4, 7, 8, 9, 12})
        self.assertEqual(docs.numbers("15–17"), {15, 16, 17})


if __name__ == "__main__":
    unittest.main()
