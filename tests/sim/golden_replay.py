# SPDX-License-Identifier: Apache-2.0
"""Compares the software Hopper with results that an H200 recorded: golden_replay.py CONFORMANCE_TEST GOLDEN_FOLDER.

The conformance tests of tests/hw keep those of their results that plain code does not determine, on either machine, as
raw words in $TANDEM_GOLDEN_DIR. This runs them on the simulator, once for each policy, and compares each file with the
recorded one of its name: bit for bit, or within BOUNDS (docs/simulator.md, Numbers).
"""
import array
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

BINARY, GOLDEN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def ulp(x):
    """Distance of neighbouring fp32 numbers around x."""
    return math.ldexp(1.0, max(math.frexp(x)[1] - 1, -126) - 23)


def largest(values):
    return max(map(abs, values))


# Name: (x, all recorded values) -> how far the simulator may be from the recorded x. The others are equal bit for bit.
BOUNDS = {
    "exp2": lambda x, _: 2 * ulp(x),
    "log2": lambda x, _: max(2**-21.4, 2 * ulp(x)),
    "tanh": lambda x, _: 1e-6 * abs(x),
    "reciprocal": lambda x, _: ulp(x),
} | {f"{form}_{dtype}": lambda _, values: 2**-21 * largest(values)
     for form in ("wgmma_ss", "wgmma_rs", "mma") for dtype in ("bf16", "fp16")}


def read(folder, name):
    words = array.array("f" if name in BOUNDS else "I")
    words.frombytes((folder / f"{name}.bin").read_bytes())
    return words


def names_in(folder):
    return sorted(path.stem for path in folder.glob("*.bin"))


def distance(name, recorded, simulated):
    """The largest difference as a multiple of the bound; infinity where there is none and words differ."""
    if name not in BOUNDS:
        return 0.0 if recorded == simulated else math.inf
    worst = 0.0
    for x, y in zip(recorded, simulated):
        excess = abs(x - y) / BOUNDS[name](x, recorded)
        worst = max(worst, math.inf if math.isnan(excess) else excess)
    return worst


class Replay(unittest.TestCase):
    """The three policies. All files of both sides have to be there, of the same length."""

    def replay(self, policy, left_out=()):
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder)
            subprocess.run([BINARY, f"--gtest_filter=*/{policy}", "--gtest_brief=1"], check=True,
                           env=os.environ | {"TANDEM_GOLDEN_DIR": folder}, stdout=subprocess.DEVNULL)
            self.assertEqual(names_in(kept), names_in(GOLDEN))
            for name in set(names_in(GOLDEN)) - set(left_out):
                with self.subTest(name):
                    recorded, simulated = read(GOLDEN, name), read(kept, name)
                    self.assertEqual(len(simulated), len(recorded))
                    apart = distance(name, recorded, simulated)
                    print(f"{policy:6} {name:14} {apart:.2f} of the bound")
                    self.assertLessEqual(apart, 1)

    def test_eager(self):
        self.replay("eager")

    def test_late(self):
        self.replay("late")

    def test_random_which_may_elect_any_lane(self):
        self.replay("random", left_out=["elected"])


class Comparison(unittest.TestCase):
    """Sees a difference of one bit, and of one bound."""

    def test_exact_results_that_differ_in_one_bit(self):
        self.assertEqual(distance("pack_bf16", [0x3f80, 1], [0x3f80, 0]), math.inf)

    def test_bounded_results_beyond_the_bound(self):
        x = [1.0, 8.0]
        self.assertLess(distance("exp2", x, [1.0, 8.0 + ulp(8.0)]), 1)
        self.assertGreater(distance("exp2", x, [1.0, 8.0 + 3 * ulp(8.0)]), 1)
        self.assertFalse(distance("exp2", x, [math.nan, 8.0]) <= 1)


class ChipSum(unittest.TestCase):
    """How WGMMA and mma.sync round, as docs/simulator.md says it: the recorded results follow from it bit for bit."""
    M, N, K, STEP = 64, 16, 96, 16

    @staticmethod
    def numbers():
        """The values of real_matrices in tests/hw/matrices.h: std::mt19937(23), mantissa and exponent in turn."""
        state = [23]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % 2**32)
        source = random.Random()
        source.setstate((3, (*state, 624), None))
        while True:
            mantissa = source.getrandbits(32) % 511 - 255
            yield math.ldexp(mantissa, -(source.getrandbits(32) % 12))

    @staticmethod
    def add(accumulator, factors, bits):
        """accumulator + the products: aligned to the largest exponent, each truncated to `bits` below it."""
        exponents = [math.frexp(a)[1] + math.frexp(b)[1] - 1 for a, b in factors if a * b != 0]
        largest_exponent = max(exponents + [math.frexp(accumulator)[1]])
        unit = math.ldexp(1.0, largest_exponent - 1 - bits)
        total = sum(math.trunc(x / unit) for x in [a * b for a, b in factors] + [accumulator]) * unit
        fp32 = math.ldexp(1.0, math.frexp(total)[1] - 24)
        return math.trunc(total / fp32) * fp32

    def results(self, bits):
        source, m, n, k = self.numbers(), self.M, self.N, self.K
        a, b, d = ([next(source) for _ in range(size)] for size in (m * k, k * n, m * n))
        for at, sum_ in enumerate(d):
            row, column = divmod(at, n)
            for step in range(0, k, self.STEP):
                factors = [(a[row * k + i], b[i * n + column]) for i in range(step, step + self.STEP)]
                sum_ = self.add(sum_, factors, bits)
            yield sum_

    def test_recorded_products_are_sums_of_25_bits_below_the_largest_exponent(self):
        expected = list(self.results(25))
        for name in filter(lambda name: "mma" in name, names_in(GOLDEN)):
            self.assertEqual(list(read(GOLDEN, name)), expected)
            for bits in (24, 26):
                self.assertNotEqual(list(read(GOLDEN, name)), list(self.results(bits)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
