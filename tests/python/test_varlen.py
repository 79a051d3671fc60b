# SPDX-License-Identifier: Apache-2.0
"""forward_varlen of the Python binding against float64 attention of each sequence in NumPy, on the CPU backends."""

import os
import sys
import unittest
from unittest import mock

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem
import tandem._arrays
import tandem._varlen
from oracle import attention64, rotated, shown, visible

SEED = int(os.environ.get("TANDEM_SEED", np.random.SeedSequence().entropy % 2**32))


class Batch:
    """Random sequences; what belongs to none of them is NaN, and slots of pages that are not in use are wild."""

    def __init__(self, rng, layout):
        self.rng, count = rng, rng.integers(1, 6)
        self.q_lens, self.k_lens = (rng.integers(0, 40, count) for _ in "qk")
        self.q_lens[0] += 1
        self.k_lens[0] += 1
        self.kv_heads, group, self.d = rng.integers(1, 3), rng.integers(1, 4), 8 * rng.integers(1, 7)
        self.q = [self.normal(n, self.kv_heads * group) for n in self.q_lens]
        self.k, self.v = ([self.normal(n, self.kv_heads) for n in self.k_lens] for _ in "kv")
        self.lengths = {"cu_seqlens_q": self.cumulated(self.q_lens)}
        self.tensors = getattr(self, layout)()

    def normal(self, rows, heads):
        return self.rng.standard_normal((rows, heads, self.d)).astype(np.float32)

    @staticmethod
    def cumulated(lengths):
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)

    def packed(self):
        self.lengths["cu_seqlens_k"] = self.cumulated(self.k_lens)
        return np.concatenate(self.k), np.concatenate(self.v)

    def entries(self):
        self.lengths["seqused_k"] = self.k_lens.astype(np.int32)
        pools = [np.full((len(self.k), 42, self.kv_heads, self.d), np.nan, np.float32) for _ in "kv"]
        for pool, rows in zip(pools, (self.k, self.v)):
            for entry, x in zip(pool, rows):
                entry[:len(x)] = x
        return pools

    def paged(self):
        size, slots = int(self.rng.integers(1, 9)), 42
        self.lengths["seqused_k"] = self.k_lens.astype(np.int32)
        table = self.rng.permutation(len(self.k) * slots).astype(np.int32).reshape(-1, slots)
        pools = [np.full((table.size, size, self.kv_heads, self.d), np.nan, np.float32) for _ in "kv"]
        for pool, rows in zip(pools, (self.k, self.v)):
            for i, x in enumerate(rows):
                for s, row in enumerate(x):
                    pool[table[i, s // size], s % size] = row
        for i, n in enumerate(self.k_lens):
            table[i, -(-n // size):] = self.rng.integers(-2**31, 2**31)
        self.lengths["page_table"] = table
        return pools


class Seen:
    """The library, and what of a call's memory reached it."""

    def __init__(self):
        self.lse, self.zeroed, self._lib, self._workspace = [], [], tandem._varlen.library(), tandem._arrays.NumpyArrays.workspace

    def tandem_forward_workspace(self, args, size):
        return self._lib.tandem_forward_workspace(args, size)

    def tandem_forward(self, args, *memory):
        self.lse.append(args._obj.lse.data)
        return self._lib.tandem_forward(args, *memory)

    def workspace(self, arrays, size, zeroed=True):
        self.zeroed.append(zeroed)
        memory = self._workspace(arrays, size, zeroed)
        memory[:] = 0xff  # as another call may have left it
        return memory


class ForwardVarlen(unittest.TestCase):
    def test_asks_for_no_more_than_is_wanted(self):
        rng = np.random.default_rng(SEED)
        for layout in ("packed", "entries", "paged"):
            with self.subTest(seed=SEED, layout=layout):
                batch = Batch(rng, layout)
                call = [np.concatenate(batch.q), *batch.tensors]
                expected, lse = tandem.forward_varlen(*call, **batch.lengths, causal=True, return_lse=True)
                seen = Seen()
                workspace = mock.patch.object(tandem._arrays.NumpyArrays, "workspace",
                                              lambda arrays, size, zeroed=True: seen.workspace(arrays, size, zeroed))
                with mock.patch.object(tandem._varlen, "library", lambda: seen), workspace:
                    out = tandem.forward_varlen(*call, **batch.lengths, causal=True)
                    both = tandem.forward_varlen(*call, **batch.lengths, causal=True, return_lse=True)
                self.assertIsNone(seen.lse[0], "a log-sum-exp that nobody asked for")
                self.assertIsNotNone(seen.lse[1])
                self.assertNotIn(True, seen.zeroed, "a workspace need not be cleared")
                np.testing.assert_array_equal(out, expected)
                np.testing.assert_array_equal(both[0], expected)
                np.testing.assert_array_equal(both[1], lse)

    def test_equals_float64_attention_of_each_sequence(self):
        rng = np.random.default_rng(SEED)
        for case in range(60):
            layout = ("packed", "entries", "paged")[case % 3]
            batch, causal = Batch(rng, layout), bool(rng.integers(2))
            sinks = rng.standard_normal(batch.q[0].shape[1]).astype(np.float32) if rng.integers(2) else None
            chunk = int(rng.integers(1, 40)) if rng.integers(3) == 0 else 0
            rows, heads = sum(batch.q_lens), batch.q[0].shape[1]
            slopes = (rng.random((len(batch.q), heads) if rng.integers(2) else heads).astype(np.float32)
                      if rng.integers(3) == 0 else None)
            tree = rng.integers(0, 2**63, rows, np.uint64) * rng.integers(0, 3, rows, np.uint64) if case % 4 == 0 else None
            with self.subTest(seed=SEED, case=case, layout=layout, q=batch.q_lens, k=batch.k_lens):
                out, lse = tandem.forward_varlen(np.concatenate(batch.q), *batch.tensors, **batch.lengths, causal=causal,
                                                 return_lse=True, backend=("cpu", "reference")[case % 2], sinks=sinks, chunk=chunk,
                                                 alibi_slopes=slopes, tree=tree)
                begin = 0
                for i, (q, k, v) in enumerate(zip(batch.q, batch.k, batch.v)):
                    mask = visible(len(q), len(k), None, 0 if causal else None, chunk)
                    if tree is not None:
                        mask &= shown(tree[begin:begin + len(q)], len(k))
                    own = slopes[i] if slopes is not None and slopes.ndim == 2 else slopes
                    expected, expected_lse = attention64(q[None], k[None], v[None], batch.d ** -0.5, mask, sinks=sinks,
                                                         slopes=own)
                    np.testing.assert_allclose(out[begin:begin + len(q)], expected[0], atol=2e-5)
                    np.testing.assert_allclose(lse[begin:begin + len(q)], expected_lse[0], atol=2e-5)
                    begin += len(q)

    def test_each_sequence_sees_the_key_blocks_that_are_listed_for_its_own(self):
        rng = np.random.default_rng(SEED)
        for case in range(24):
            layout, bound = ("packed", "entries", "paged")[case % 3], int(case % 2) * 40
            with self.subTest(seed=SEED, case=case, layout=layout, bound=bound):
                batch = Batch(rng, layout)
                count, heads = len(batch.q_lens), batch.q[0].shape[1]
                rows = -(-(bound or batch.q_lens.sum()) // 8)  # of 8 queries; 5 blocks of 8 keys
                sizes = (count if case % 4 < 2 else 1, heads if case % 8 < 4 else 1, min(rows, -(-batch.q_lens.sum() // 8)))
                counts = rng.integers(0, 6, sizes).astype(np.int32)
                blocks = np.full((*sizes, 6), 2**31 - 1, np.int32)
                for row in np.ndindex(sizes):
                    blocks[row][:counts[row]] = np.sort(rng.permutation(5)[:counts[row]])
                out, lse = tandem.forward_varlen(np.concatenate(batch.q), *batch.tensors, **batch.lengths, causal=True,
                                                 max_seqlen_q=bound, return_lse=True, backend=("cpu", "reference")[case % 2],
                                                 block_list=tandem.BlockList(counts, blocks, q_block=8, k_block=8))
                begin = 0
                for i, (q, k, v) in enumerate(zip(batch.q, batch.k, batch.v)):
                    for head in range(heads):
                        mask = visible(len(q), len(k), None, 0)
                        for query in range(len(q)):
                            row = (i % sizes[0], head % sizes[1], query // 8)
                            mask[query] &= np.isin(np.arange(len(k)) // 8, blocks[row][:counts[row]])
                        kv = slice(head // (heads // batch.kv_heads), head // (heads // batch.kv_heads) + 1)
                        expected, expected_lse = attention64(q[None, :, head:head + 1], k[None, :, kv], v[None, :, kv],
                                                             batch.d ** -0.5, mask)
                        np.testing.assert_allclose(out[begin:begin + len(q), head:head + 1], expected[0], atol=2e-5)
                        np.testing.assert_allclose(lse[begin:begin + len(q), head:head + 1], expected_lse[0], atol=2e-5)
                    begin += len(q)

    def test_block_lists_have_rows_for_the_bound(self):
        q, k = np.zeros((10, 2, 16), np.float32), np.zeros((20, 2, 16), np.float32)
        lengths = {"cu_seqlens_q": np.array([0, 4, 10], np.int32), "cu_seqlens_k": np.array([0, 9, 20], np.int32)}
        for rows, bound, wanted in ((2, 0, 3), (3, 6, 2), (1, 8, 2)):
            listed = tandem.BlockList(np.zeros((1, 1, rows), np.int32), np.zeros((1, 1, rows, 1), np.int32), 4, 4)
            with self.assertRaisesRegex(tandem.TandemError, rf"counts has shape \(1, 1, {rows}\); \(2, 2, {wanted}\)"):
                tandem.forward_varlen(q, k, k, **lengths, max_seqlen_q=bound, block_list=listed)
        with self.assertRaisesRegex(tandem.TandemError, "it has to be a tandem.BlockList"):
            tandem.forward_varlen(q, k, k, **lengths, block_list=3)

    def test_appends_and_rotates_in_the_same_call(self):
        rng = np.random.default_rng(SEED)
        for case in range(40):
            count, heads, group, d, room = rng.integers(1, 5), 2, 2, 32, 50
            q_lens, used = rng.integers(0, 9, count), rng.integers(0, 30, count)
            pad = np.minimum(rng.integers(0, 5, count), used) if case % 2 else np.zeros(count, int)
            packed = bool(rng.integers(2))
            new = rng.integers(0, 9, count) if packed else np.full(count, rng.integers(0, 9))
            q_lens[0], new[0] = q_lens[0] + 1, new[0] + packed
            q, k_new, v_new = (rng.standard_normal((n, h, d)).astype(np.float32) for n, h in (
                (q_lens.sum(), heads * group), (new.sum(), heads), (new.sum(), heads)))
            k, v = (rng.standard_normal((count + 1, room, heads, d)).astype(np.float32) for _ in "kv")
            entries = rng.permutation(count + 1)[:count].astype(np.int32)
            angles = rng.standard_normal((room, 8))
            rotary, interleaved = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)), bool(case % 3)
            before, options = (k.copy(), v.copy()), {"cu_seqlens_k_new": Batch.cumulated(new)} if packed else {}
            shape = (-1, heads, d) if packed else (count, new[0], heads, d)
            with self.subTest(seed=SEED, case=case, q=q_lens, used=used, new=new, pad=pad):
                out = tandem.forward_varlen(
                    q, k, v, cu_seqlens_q=Batch.cumulated(q_lens), seqused_k=used.astype(np.int32), causal=True,
                    k_new=k_new.reshape(shape), v_new=v_new.reshape(shape), rotary=rotary, rotary_interleaved=interleaved,
                    leftpad_k=pad.astype(np.int32), batch_index=entries, backend=("cpu", "reference")[case % 2], **options)
                for i, (n, m, length, entry) in enumerate(zip(q_lens, new, used, entries)):
                    own_q, own_k, own_v = (x[sizes[:i].sum():sizes[:i + 1].sum()]
                                           for x, sizes in ((q, q_lens), (k_new, new), (v_new, new)))
                    total = length + m
                    before[0][entry, length:total] = rotated(own_k, np.arange(length, total), *rotary, interleaved)
                    before[1][entry, length:total] = own_v
                    turned = rotated(own_q, np.arange(total - n, total), *rotary, interleaved)
                    keys, values = (x[None, entry, pad[i]:total] for x in before)
                    expected, _ = attention64(turned[None], keys, values, d ** -0.5, visible(n, total - pad[i], None, 0))
                    np.testing.assert_allclose(out[q_lens[:i].sum():][:n], expected[0], atol=2e-5)
                np.testing.assert_allclose(k, before[0], atol=1e-6)
                np.testing.assert_array_equal(v, before[1])

    def test_sinks_of_fixed_lengths_and_what_is_wrong_with_them(self):
        rng = np.random.default_rng(SEED)
        q, k, v = (rng.standard_normal((2, n, h, 16)).astype(np.float32) for n, h in ((5, 4), (9, 2), (9, 2)))
        sinks = np.array([0, 300, -np.inf, -2], np.float32)
        for backend in ("cpu", "reference"):
            out, lse = tandem.forward(q, k, v, causal=True, sinks=sinks, return_lse=True, backend=backend)
            expected, expected_lse = attention64(q, k, v, 0.25, visible(5, 9, None, 0), sinks=sinks)
            np.testing.assert_allclose(out, expected, atol=2e-5)
            np.testing.assert_allclose(lse, expected_lse, rtol=1e-5)
            without = tandem.forward(q, k, v, causal=True, backend=backend)
            np.testing.assert_array_equal(out[:, :, 2], without[:, :, 2])
        for wrong, message in ((sinks[:3], "sinks has 3 numbers; 4 are needed"), (sinks.astype(np.float64), "sinks is float64")):
            with self.subTest(message), self.assertRaises(tandem.TandemError) as raised:
                tandem.forward(q, k, v, sinks=wrong)
            self.assertIn(message, str(raised.exception))

    def test_with_a_split_size_a_sequence_has_the_same_bits_alone_and_in_a_batch(self):
        rng = np.random.default_rng(SEED)
        for case in range(20):
            batch = Batch(rng, "packed")
            with self.subTest(seed=SEED, case=case, q=batch.q_lens, k=batch.k_lens):
                out = tandem.forward_varlen(np.concatenate(batch.q), *batch.tensors, **batch.lengths, causal=True,
                                            split_size=64)
                begin = 0
                for q, k, v in zip(batch.q, batch.k, batch.v):
                    if len(q) > 0:
                        alone = tandem.forward_varlen(q, k, v, cu_seqlens_q=batch.cumulated([len(q)]), causal=True,
                                                      cu_seqlens_k=batch.cumulated([len(k)]), split_size=64)
                        np.testing.assert_array_equal(out[begin:begin + len(q)].view(np.uint32), alone.view(np.uint32))
                    begin += len(q)
        q, numbers = np.zeros((4, 1, 8), np.float32), np.array([0, 4], np.int32)
        for wrong, message in ((100, "split_size is 100; it has to be a multiple of 64"), (2**64 + 64, "fit in 64 bits")):
            with self.subTest(message), self.assertRaises(tandem.TandemError) as raised:
                tandem.forward_varlen(q, q, q, cu_seqlens_q=numbers, cu_seqlens_k=numbers, split_size=wrong)
            self.assertIn(message, str(raised.exception))

    def test_the_host_needs_no_plan(self):
        batch = Batch(np.random.default_rng(SEED), "packed")
        given, options = (np.concatenate(batch.q), *batch.tensors), batch.lengths | {"causal": True}
        self.assertIsNone(tandem.forward_varlen_plan(*given, **options))
        for wrong, message in ((np.zeros(3, np.int32), "plan is int32"), (3, "plan")):
            with self.subTest(message), self.assertRaisesRegex(tandem.TandemError, message):
                tandem.forward_varlen(*given, **options, plan=wrong)
        out = tandem.forward_varlen(*given, **options, plan=np.zeros(0, np.uint8))
        np.testing.assert_array_equal(out, tandem.forward_varlen(*given, **options))
        with self.assertRaisesRegex(TypeError, "forward_varlen_plan has no argument soft_cap; allowed are cu_seqlens_q"):
            tandem.forward_varlen_plan(*given, **options, soft_cap=1)

    def test_a_batch_of_nothing_has_tables_too(self):
        q, pages = np.zeros((0, 3, 2, 8), np.float32), np.zeros((4, 16, 2, 8), np.float32)
        options = {"seqused_k": np.zeros(0, np.int32), "page_table": np.zeros((0, 3), np.int32)}
        self.assertEqual(tandem.forward_varlen(q, pages, pages, **options).shape, q.shape)

    def test_lengths_that_do_not_fit_are_named(self):
        q = np.zeros((4, 1, 8), np.float32)
        numbers = np.array([0, 4], np.int32)
        for wrong, message in (({"cu_seqlens_k": numbers.astype(np.int64)}, "cu_seqlens_k is int64"),
                               ({"cu_seqlens_k": numbers[:1]}, "cu_seqlens_k has 1 numbers; 2 are needed"),
                               ({"page_table": np.zeros((2, 1), np.int32)}, "page_table has 2 rows; 1 are needed"),
                               ({}, "k.shape[0]")):
            with self.subTest(message), self.assertRaises(tandem.TandemError) as raised:
                tandem.forward_varlen(q, q[None][[0, 0]] if not wrong else q, q[None][[0, 0]] if not wrong else q,
                                      cu_seqlens_q=numbers, **wrong)
            self.assertIn(message, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
