# SPDX-License-Identifier: Apache-2.0
"""tools/sass_compare on listings as cuobjdump writes them."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/sass_compare"


def listing(name, *instructions):
    """Of one function; instructions are (text, encoding)."""
    lines = ["code for sm_90a", f"\t\tFunction : {name}"]
    for i, (text, encoding) in enumerate(instructions):
        lines += [f"        /*{16 * i:04x}*/                   {text} ;   /* 0x{encoding:016x} */",
                  f"                                          /* 0x{encoding + 1:016x} */"]
    return "\n".join(lines) + "\n"


MOVE, ADD, EXIT, NOP = ("MOV R1, c[0x0][0x28]", 0x10), ("IADD3 R2, R1, 0x1, RZ", 0x20), ("EXIT", 0x30), ("NOP", 0x40)


class SassCompareTest(unittest.TestCase):
    def compare(self, before, after, *options):
        """Exit code and lines, for two builds of one file each."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            cuobjdump = folder / "cuobjdump"
            cuobjdump.write_text('#!/bin/sh\ncat "$2"\n')
            cuobjdump.chmod(0o755)
            for build, text in (("before", before), ("after", after)):
                (folder / build).mkdir()
                (folder / build / "kernels.cu.o").write_text(text)
            done = subprocess.run([sys.executable, TOOL, folder / "before", folder / "after", "--cuobjdump", cuobjdump, *options],
                                  capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def test_kernels_of_other_names_are_the_same(self):
        self.assertEqual(self.compare(listing("old", MOVE, ADD, EXIT), listing("new", MOVE, ADD, EXIT)),
                         (0, ["1 kernels before, 1 after, 1 identical"]))

    def test_what_fills_up_the_last_line_does_not_count(self):
        self.assertEqual(self.compare(listing("a", MOVE, EXIT, NOP), listing("a", MOVE, EXIT, NOP, NOP))[0], 0)

    def test_another_instruction_is_a_change(self):
        code, lines = self.compare(listing("old1", MOVE, ADD, EXIT), listing("new1", MOVE, MOVE, EXIT),
                                   "--rename", r"old(\d)=new\1")
        self.assertEqual(code, 1)
        self.assertEqual(lines[1:], ["changed: new1, 3 -> 3 instructions, from instruction 1 on: IADD3 R2, R1, 0x1, RZ ; | "
                                     "MOV R1, c[0x0][0x28] ;"])

    def test_another_schedule_of_the_same_instructions_is_a_change(self):
        later = (ADD[0], ADD[1] + 0x100)
        code, lines = self.compare(listing("a", MOVE, ADD, EXIT), listing("a", MOVE, later, EXIT))
        self.assertEqual(code, 1)
        self.assertIn("another encoding of the same text", lines[1])

    def test_a_kernel_that_is_missing_once_is_named_once(self):
        twice = listing("a", MOVE, EXIT) + listing("b", MOVE, EXIT)
        code, lines = self.compare(twice, listing("c", MOVE, EXIT))
        self.assertEqual((code, lines), (1, ["2 kernels before, 1 after, 1 identical", "only before: a, 2 instructions"]))


if __name__ == "__main__":
    unittest.main()
