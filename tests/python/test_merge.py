# SPDX-License-Identifier: Apache-2.0
"""merge of the Python binding against float64 NumPy, on the CPU backends."""

import os
import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem
from oracle import attention64, merged64, visible

SEED = int(os.environ.get("TANDEM_SEED", np.random.SeedSequence().entropy % 2**32))


class MergeTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def random_parts(self, parts, dtype=np.float32):
        """o_parts and lse_parts, not contiguous; NaN where no key was seen."""
        b, s, heads, d = *self.rng.integers(1, 5, 3), 8 * self.rng.integers(1, 9)
        lse = 4 * self.rng.standard_normal((b, parts, heads, s)).astype(np.float32).transpose(1, 0, 3, 2)
        lse[self.rng.random(lse.shape) < 0.3] = -np.inf
        o = self.rng.standard_normal((b, parts, heads, s, d)).astype(dtype).transpose(1, 0, 3, 2, 4)
        o[np.isneginf(lse)] = np.nan
        return o, lse

    def test_equals_float64_on_random_parts(self):
        for parts in (0, 1, 2, 7):
            for dtype, backend in ((np.float32, "auto"), (np.float16, "cpu"), (np.float32, "reference")):
                o_parts, lse_parts = self.random_parts(parts, dtype)
                out, lse = tandem.merge(o_parts, lse_parts, backend=backend)
                expected, lse64 = merged64(o_parts, lse_parts)
                self.assertEqual((out.dtype, out.shape), (dtype, o_parts.shape[1:]))
                np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 if dtype == np.float32 else 4e-3)
                np.testing.assert_allclose(lse, lse64, rtol=1e-5, atol=1e-5)

    def test_of_attention_over_parts_of_the_keys_is_attention_over_all(self):
        q, k, v = (self.rng.standard_normal((2, s, 3, 16)).astype(np.float32) for s in (5, 40, 40))
        cuts = ((0, 11), (11, 11), (11, 40))
        parts = [tandem.forward(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in cuts]
        out, lse = tandem.merge(np.stack([o for o, _ in parts]), np.stack([l for _, l in parts]))
        expected, expected_lse = tandem.forward(q, k, v, return_lse=True)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)

    def test_of_a_prefix_that_sequences_share_and_of_their_own_keys_is_attention_over_both(self):
        """docs/decode.md: a prefix is read once for all sequences of its group."""
        for _ in range(5):
            sizes = self.rng.integers(1, 4, self.rng.integers(1, 4))  # sequences of each group
            n, sq, page_size, slots, heads, d = int(sizes.sum()), int(self.rng.integers(1, 4)), 4, 4, 2, 16
            pages = self.rng.permutation((n + len(sizes)) * slots).astype(np.int32).reshape(-1, slots)
            own_pages, prefix_pages = pages[:n], pages[n:]
            k_pages, v_pages = self.rng.standard_normal((2, pages.size, page_size, heads, d)).astype(np.float32)
            q = self.rng.standard_normal((n, sq, 3 * heads, d)).astype(np.float32)
            k, v = self.rng.standard_normal((2, n, sq, heads, d)).astype(np.float32)
            own_lengths = self.rng.integers(0, slots * page_size - sq + 1, n).astype(np.int32)
            prefix_lengths = self.rng.integers(0, slots * page_size + 1, len(sizes)).astype(np.int32)
            groups = (sq * np.concatenate(([0], np.cumsum(sizes)))).astype(np.int32)
            with self.subTest(sizes=sizes, sq=sq, prefixes=prefix_lengths, own=own_lengths):
                shared, shared_lse = tandem.forward_varlen(q.reshape(-1, *q.shape[2:]), k_pages, v_pages, cu_seqlens_q=groups,
                                                           seqused_k=prefix_lengths, page_table=prefix_pages, return_lse=True)
                own, own_lse = tandem.decode(q, k_pages, v_pages, own_lengths, page_table=own_pages, k_new=k, v_new=v,
                                             causal=True, return_lse=True)
                out, lse = tandem.merge(np.stack([shared.reshape(own.shape), own]),
                                        np.stack([shared_lse.reshape(own_lse.shape), own_lse]))
                for i, group in enumerate(np.repeat(np.arange(len(sizes)), sizes)):
                    keys, values = (np.concatenate([x[prefix_pages[group]].reshape(-1, heads, d)[:prefix_lengths[group]],
                                                    x[own_pages[i]].reshape(-1, heads, d)[:own_lengths[i] + sq]])
                                    for x in (k_pages, v_pages))
                    mask = visible(sq, len(keys), None, 0)
                    expected, expected_lse = attention64(q[i:i + 1], keys[None], values[None], d ** -0.5, mask)
                    np.testing.assert_allclose(out[i], expected[0], rtol=0, atol=1e-5)
                    np.testing.assert_allclose(lse[i], expected_lse[0], rtol=0, atol=1e-5)

    def test_the_output_s_dtype_and_place_can_be_asked_for(self):
        o_parts, lse_parts = self.random_parts(3)
        out, _ = tandem.merge(o_parts, lse_parts, dtype=np.float16)
        self.assertEqual(out.dtype, np.float16)
        into = np.full(o_parts.shape[1:], np.nan, np.float16)
        self.assertIs(tandem.merge(o_parts, lse_parts, out=into)[0], into)
        np.testing.assert_array_equal(into, out)

    def test_refuses_what_contradicts_itself(self):
        o_parts, lse_parts = self.random_parts(3)
        for pattern, call in (("o_parts has 4 dimensions; 5", lambda: tandem.merge(o_parts[0], lse_parts)),
                              ("lse_parts has 3 dimensions; 4", lambda: tandem.merge(o_parts, lse_parts[0])),
                              ("o_parts has 3 parts, lse_parts 2", lambda: tandem.merge(o_parts, lse_parts[:2])),
                              ("lse_parts is float16; allowed are float32",
                               lambda: tandem.merge(o_parts, lse_parts.astype(np.float16))),
                              ("o_parts is float64", lambda: tandem.merge(o_parts.astype(float), lse_parts, dtype="f4"))):
            with self.assertRaisesRegex(tandem.TandemError, pattern):
                call()
        with self.assertRaisesRegex(TypeError, "o_parts is a builtins.list"):
            tandem.merge([o_parts], lse_parts)


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}")
    unittest.main()
