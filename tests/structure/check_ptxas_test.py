"""tools/check_ptxas lets clean kernels pass and names what ptxas did to others."""

import pathlib
import subprocess
import sys
import unittest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "check_ptxas"
CLEAN = """ptxas info    : Compiling entry function 'kernel_a' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""


def check(report, status=0):
    program = f"import sys; sys.stderr.write({report!r}); sys.exit({status})"
    return subprocess.run([TOOL, sys.executable, "-c", program], capture_output=True, text=True)


class CheckPtxas(unittest.TestCase):
    def test_a_clean_report_passes_without_a_word(self):
        done = check(CLEAN)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_spill_fails_and_names_the_kernel(self):
        done = check(CLEAN.replace("0 bytes spill stores", "16 bytes spill stores"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("kernel_a spills", done.stderr)

    def test_serialised_wgmma_fails(self):
        warning = "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized"
        done = check(CLEAN + warning + "\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("C7512", done.stderr)

    def test_the_compilers_own_failure_and_words_come_through(self):
        done = check(CLEAN + "x.cu(3): error: no\n", status=4)
        self.assertEqual(done.returncode, 4)
        self.assertIn("x.cu(3): error: no", done.stderr)


if __name__ == "__main__":
    unittest.main()
