# SPDX-License-Identifier: Apache-2.0
"""tandem.backward_varlen against float64 gradients of each sequence in NumPy, on the CPU backends."""

import os
import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem
from oracle import gradients64, visible
from test_varlen import Batch

SEED = int(os.environ.get("TANDEM_SEED", np.random.SeedSequence().entropy % 2**32))


class Training(Batch):
    """A batch whose forward has run: packed queries behind and before rows of nobody, which hold NaN."""

    def __init__(self, rng, layout, **options):
        super().__init__(rng, layout)
        before, behind = rng.integers(0, 4, 2)
        self.lengths["cu_seqlens_q"] += np.int32(before)
        gaps = [np.full((n, *self.q[0].shape[1:]), np.nan, np.float32) for n in (before, behind)]
        self.packed_q = np.concatenate([gaps[0], *self.q, gaps[1]])
        self.dout = [self.normal(len(x), x.shape[1]) for x in self.q]
        self.dlse = [self.normal(len(x), x.shape[1])[..., 0] for x in self.q] if rng.integers(2) else None
        self.packed_dout = np.concatenate([gaps[0], *self.dout, gaps[1]])
        self.packed_dlse = (None if self.dlse is None else
                            np.concatenate([gaps[0][..., 0], *self.dlse, gaps[1][..., 0]]))
        self.results = tandem.forward_varlen(self.packed_q, *self.tensors, **self.lengths, return_lse=True, **options)

    def gradients(self, **options):
        return tandem.backward_varlen(self.packed_q, *self.tensors, *self.results, self.packed_dout,
                                      dlse=self.packed_dlse, **self.lengths, **options)

    def rows(self, i):
        """Of sequence i: where its queries are, and where its keys."""
        starts = self.lengths["cu_seqlens_q"]
        if "cu_seqlens_k" in self.lengths:
            keys = slice(*self.lengths["cu_seqlens_k"][i:i + 2])
        else:
            keys = i, slice(self.k_lens[i])
        return slice(starts[i], starts[i + 1]), keys


class BackwardVarlen(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def draw_options(self, heads):
        kinds = {"causal": {"causal": True}, "full": {}, "window": {"window": (int(self.rng.integers(9)), int(self.rng.integers(9)))}}
        kind = str(self.rng.choice(list(kinds)))
        options = kinds[kind] | ({"softcap": 3.0} if self.rng.integers(3) == 0 else {})
        if self.rng.integers(2):
            options["sinks"] = self.rng.standard_normal(heads).astype(np.float32)
        sides = {"causal": (None, 0), "full": (None, None), "window": options.get("window")}[kind]
        return options, sides

    def test_equals_float64_gradients_of_each_sequence(self):
        for case in range(60):
            layout = ("packed", "entries")[case % 2]
            batch = Training(self.rng, layout)
            options, sides = self.draw_options(batch.q[0].shape[1])
            options["backend"] = ("cpu", "reference", "auto")[case % 3]
            batch.results = tandem.forward_varlen(batch.packed_q, *batch.tensors, **batch.lengths, return_lse=True, **options)
            bounds = {"max_seqlen_q": int(max(batch.q_lens)), "max_seqlen_k": int(max(batch.k_lens))} if case % 4 else {}
            with self.subTest(seed=SEED, case=case, layout=layout, q=batch.q_lens, k=batch.k_lens, options=options):
                dq, dk, dv, *dsinks = batch.gradients(**options, **bounds)
                sums = 0
                for i, (q, k, v) in enumerate(zip(batch.q, batch.k, batch.v)):
                    own = batch.dout[i][None], None if batch.dlse is None else batch.dlse[i][None]
                    expected = gradients64((q[None], k[None], v[None]), own, batch.d ** -0.5, visible(len(q), len(k), *sides),
                                           options.get("softcap", 0.0), options.get("sinks"))
                    rows, keys = batch.rows(i)
                    for result, wanted in zip((dq[rows], dk[keys], dv[keys]), expected):
                        np.testing.assert_allclose(result, wanted[0], rtol=1e-4, atol=1e-4)
                        result[...] = 0  # what is left is of no sequence
                    sums = sums + expected[3] if dsinks else 0
                for x in (dq, dk, dv):
                    self.assertFalse(x.any(), "rows of no sequence have gradient 0")
                if dsinks:
                    np.testing.assert_allclose(dsinks[0], sums, rtol=1e-4, atol=1e-4)

    def test_writes_where_it_is_told_and_there_the_rows_of_sequences_alone(self):
        batch = Training(self.rng, "entries")
        into = {name: np.full_like(x, 7) for name, x in zip(("dq", "dk", "dv"), (batch.packed_q, *batch.tensors))}
        expected, results = batch.gradients(), batch.gradients(**into)
        for x, result, wanted in zip(into.values(), results, expected):
            self.assertIs(result, x)
            np.testing.assert_array_equal(np.where(result == 7, 0, result), wanted)
        unused = [dk[n:] for dk, n in zip(into["dk"], batch.k_lens)]
        self.assertTrue(all((rows == 7).all() for rows in unused))

    def test_entries_of_queries_without_any_lengths_are_those_of_a_plain_call(self):
        q, k, v = (self.rng.standard_normal((3, n, 2, 16)).astype(np.float32) for n in (9, 20, 20))
        out, lse = tandem.forward(q, k, v, causal=True, return_lse=True)
        dout = np.ones_like(q)
        for result, wanted in zip(tandem.backward_varlen(q, k, v, out, lse, dout, causal=True),
                                  tandem.backward(q, k, v, out, lse, dout, causal=True)):
            np.testing.assert_allclose(result, wanted, atol=1e-5)

    def test_refuses_what_contradicts_itself(self):
        batch = Training(self.rng, "packed")
        count = len(batch.q_lens)
        one_more = np.zeros(count + 2, np.int32)
        zeros = np.zeros_like(batch.packed_q)
        for pattern, options in ((f"cu_seqlens_k has {count + 2} numbers; {count + 1} are needed", {"cu_seqlens_k": one_more}),
                                 ("cu_seqlens_q is int64", {"cu_seqlens_q": one_more[1:].astype(np.int64)}),
                                 ("seqused_k has 2 dimensions", {"seqused_k": one_more[None]}),
                                 ("max_seqlen_q is -1; it has to be from 0", {"max_seqlen_q": -1}),
                                 ("dq.shape.1. .sequence length.", {"dq": zeros[:0]}),
                                 ("dsinks is given, but sinks is None", {"dsinks": np.zeros(2, np.float32)}),
                                 ("causal and window", {"causal": True, "window": (1, 0)})):
            with self.subTest(pattern), self.assertRaisesRegex(tandem.TandemError, pattern):
                tandem.backward_varlen(batch.packed_q, *batch.tensors, *batch.results, batch.packed_dout,
                                       **(batch.lengths | options))
        with self.assertRaisesRegex(tandem.TandemError, "lse has 4 dimensions; 2 or 3"):
            tandem.backward_varlen(batch.packed_q, *batch.tensors, batch.results[0], batch.results[1][None, ..., None],
                                   batch.packed_dout, **batch.lengths)


if __name__ == "__main__":
    unittest.main()
