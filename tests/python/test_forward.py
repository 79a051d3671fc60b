# SPDX-License-Identifier: Apache-2.0
"""The Python binding against float64 attention in NumPy, on the CPU backends."""

import os
import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem
from oracle import attention64, shown, visible

SEED = int(os.environ.get("TANDEM_SEED", np.random.SeedSequence().entropy % 2**32))


class ForwardTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def normal(self, *shape, dtype=np.float32):
        return self.rng.standard_normal(shape).astype(dtype)

    def check(self, q, k, v, mask, scale=None, softcap=0.0, **options):
        reference, lse64 = attention64(q, k, v, scale or q.shape[-1] ** -0.5, mask, softcap=softcap)
        out = np.full(q.shape, np.nan, q.dtype)
        result, lse = tandem.forward(q, k, v, scale=scale, softcap=softcap, out=out, return_lse=True, **options)
        self.assertIs(result, out)
        tolerance = {"float32": 1e-5, "float16": 4e-3}[q.dtype.name]
        np.testing.assert_allclose(out.astype(np.float64), reference, rtol=0, atol=tolerance)
        np.testing.assert_allclose(lse, lse64, rtol=1e-5, atol=1e-4)

    def test_equals_float64_attention_on_random_shapes(self):
        for _ in range(20):
            b, kv_heads, group = self.rng.integers(1, 4, 3)
            sq, sk = self.rng.integers(1, 150, 2)
            d = 8 * self.rng.integers(1, 17)
            dtype = self.rng.choice([np.float32, np.float16])
            q = self.normal(b, sq, kv_heads * group, d, dtype=dtype)
            k, v = (self.normal(b, sk, kv_heads, d, dtype=dtype) for _ in "kv")
            backend = str(self.rng.choice(["auto", "cpu", "reference"]))
            with self.subTest(q=q.shape, k=k.shape, dtype=dtype.__name__, backend=backend):
                self.check(q, k, v, visible(sq, sk, None, None), backend=backend)

    def test_masks_scale_and_softcap_reach_the_library(self):
        q, k, v = self.normal(2, 70, 4, 32), self.normal(2, 90, 2, 32), self.normal(2, 90, 2, 32)
        self.check(q, k, v, visible(70, 90, None, 0), causal=True)
        self.check(q, k, v, visible(70, 90, 20, 7), window=(20, 7))
        self.check(q, k, v, visible(70, 90, None, 7), window=(None, 7))
        self.check(q, k, v, visible(70, 90, None, None), scale=0.3)
        self.check(q, k, v, visible(70, 90, None, None), softcap=2.0)

    def test_chunks_slopes_and_trees_reach_the_library(self):
        q, k, v = self.normal(2, 40, 4, 32), self.normal(2, 90, 2, 32), self.normal(2, 90, 2, 32)
        self.check(q, k, v, visible(40, 90, None, 0, 16), causal=True, chunk=16)
        words = np.broadcast_to(self.rng.integers(1, 2**62, 40), (2, 40)).copy()
        self.check(q, k, v, shown(words[0], 90), tree=words)
        slopes = self.rng.random(4).astype(np.float32)
        out = tandem.forward(q, k, v, alibi_slopes=slopes)
        expected, _ = attention64(q, k, v, 32 ** -0.5, visible(40, 90, None, None), slopes=slopes)
        np.testing.assert_allclose(out, expected, atol=2e-5)

    def test_each_block_of_queries_sees_the_key_blocks_that_are_listed_for_it(self):
        b, sq, sk, heads, slots = 2, 40, 90, 4, 7
        q, k, v = self.normal(b, sq, heads, 32), self.normal(b, sk, 2, 32), self.normal(b, sk, 2, 32)
        for entries, lists in ((1, 1), (b, 1), (1, heads), (b, heads)):
            rows = entries, lists, 3  # of 16 queries; 6 blocks of 16 keys
            counts = self.rng.integers(0, 7, rows).astype(np.int32)
            blocks = np.full((*rows, slots), 2**31 - 1, np.int32)
            for row in np.ndindex(rows):
                blocks[row][:counts[row]] = np.sort(self.rng.permutation(6)[:counts[row]])
            listed = tandem.BlockList(counts, blocks, q_block=16, k_block=16)
            out, lse = tandem.forward(q, k, v, causal=True, block_list=listed, return_lse=True)
            for entry, head in np.ndindex(b, heads):
                mask = visible(sq, sk, None, 0)
                for i in range(sq):
                    row = (entry % entries, head % lists, i // 16)
                    mask[i] &= np.isin(np.arange(sk) // 16, blocks[row][:counts[row]])
                own = (slice(entry, entry + 1), slice(None), slice(head, head + 1))
                kv = (own[0], own[1], slice(head // 2, head // 2 + 1))
                expected, expected_lse = attention64(q[own], k[kv], v[kv], 32 ** -0.5, mask)
                np.testing.assert_allclose(out[own], expected, atol=2e-5)
                np.testing.assert_allclose(lse[own], expected_lse, rtol=1e-5, atol=1e-4)

    def test_block_lists_go_with_sinks_chunks_slopes_and_a_tree(self):
        b, sq, sk, heads = 2, 40, 90, 4
        q, k, v = self.normal(b, sq, heads, 32), self.normal(b, sk, 2, 32), self.normal(b, sk, 2, 32)
        counts = self.rng.integers(0, 7, (b, heads, 3)).astype(np.int32)
        blocks = np.zeros((b, heads, 3, 6), np.int32)
        for row in np.ndindex(b, heads, 3):
            blocks[row][:counts[row]] = np.sort(self.rng.permutation(6)[:counts[row]])
        sinks, slopes = self.normal(heads), self.rng.random(heads).astype(np.float32)
        words = self.rng.integers(1, 2**62, (b, sq))
        out, lse = tandem.forward(q, k, v, causal=True, chunk=32, sinks=sinks, alibi_slopes=slopes, tree=words,
                                  block_list=tandem.BlockList(counts, blocks, q_block=16, k_block=16), return_lse=True)
        for entry, head in np.ndindex(b, heads):
            mask = visible(sq, sk, None, 0, 32) & shown(words[entry], sk)
            for i in range(sq):
                row = (entry, head, i // 16)
                mask[i] &= np.isin(np.arange(sk) // 16, blocks[row][:counts[row]])
            own = (slice(entry, entry + 1), slice(None), slice(head, head + 1))
            kv = (own[0], own[1], slice(head // 2, head // 2 + 1))
            expected, expected_lse = attention64(q[own], k[kv], v[kv], 32 ** -0.5, mask, sinks=sinks[own[2]], slopes=slopes[own[2]])
            np.testing.assert_allclose(out[own], expected, atol=2e-5)
            np.testing.assert_allclose(lse[own], expected_lse, rtol=1e-5, atol=1e-4)

    def test_block_lists_that_do_not_fit_are_named(self):
        q, k = self.normal(2, 40, 4, 32), self.normal(2, 90, 2, 32)
        counts, blocks = np.zeros((1, 1, 3), np.int32), np.zeros((1, 1, 3, 6), np.int32)
        for words, wrong in ((r"counts has shape \(3, 1, 3\); \(2, 4, 3\)", {"counts": np.zeros((3, 1, 3), np.int32)}),
                             (r"blocks has shape \(1, 1, 2, 6\)", {"blocks": np.zeros((1, 1, 2, 6), np.int32)}),
                             ("counts has 2 dimensions", {"counts": counts[0]}),
                             ("blocks is int64", {"blocks": blocks.astype(np.int64)}),
                             ("blocks has strides", {"blocks": np.zeros((1, 1, 3, 12), np.int32)[..., :6]}),
                             ("q_block is 0", {"q_block": 0}), ("k_block is -1", {"k_block": -1}),
                             ("k_block is 'x'", {"k_block": "x"})):
            with self.subTest(words=words), self.assertRaisesRegex(tandem.TandemError, words):
                given = {"counts": counts, "blocks": blocks, "q_block": 16, "k_block": 16} | wrong
                tandem.forward(q, k, k, block_list=tandem.BlockList(**given))

    def test_arrays_without_elements_may_have_any_strides(self):
        """NumPy's are 0."""
        q, k = self.normal(0, 7, 4, 16), self.normal(0, 9, 2, 16)
        counts, blocks = np.zeros((0, 4, 1), np.int32), np.zeros((0, 4, 1, 3), np.int32)
        for options in ({"tree": np.zeros((0, 7), np.uint64)}, {"alibi_slopes": np.zeros((0, 4), np.float32)},
                        {"block_list": tandem.BlockList(counts, blocks)}):
            self.assertEqual(tandem.forward(q, k, k, **options).shape, q.shape)
        q, k = self.normal(2, 7, 0, 16), self.normal(2, 9, 0, 16)
        self.assertEqual(tandem.forward(q, k, k, alibi_slopes=np.zeros((2, 0), np.float32)).shape, q.shape)

    def test_a_list_without_slots_hides_all_keys(self):
        q, k = self.normal(1, 7, 4, 16), self.normal(1, 9, 2, 16)
        block_list = tandem.BlockList(np.zeros((1, 1, 4), np.int32), np.zeros((1, 1, 4, 0), np.int32), 2, 2)
        self.assertTrue((tandem.forward(q, k, k, block_list=block_list) == 0).all())

    def test_takes_any_strides_with_a_contiguous_last_dimension(self):
        packed = self.normal(2, 3, 40, 3, 16)  # b, heads, s, qkv, d
        q, k, v = (packed[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
        self.check(q, k, v, visible(40, 40, None, None))
        self.check(q[:, ::-2], k, v, visible(20, 40, None, None))

    def test_queries_that_see_no_key_are_zero(self):
        q, k, v = self.normal(1, 9, 2, 8), self.normal(1, 4, 2, 8), self.normal(1, 4, 2, 8)
        out, lse = tandem.forward(q, k, v, causal=True, return_lse=True)
        self.assertTrue((out[:, :5] == 0).all() and (lse[:, :5] == -np.inf).all())
        self.assertTrue((out[:, 5:] != 0).any() and np.isfinite(lse[:, 5:]).all())

    def test_values_may_have_another_last_dimension(self):
        q, k, v = self.normal(2, 9, 4, 24), self.normal(2, 14, 2, 24), self.normal(2, 14, 2, 40)
        for backend in ("cpu", "reference"):
            out = tandem.forward(q, k, v, causal=True, backend=backend)
            expected, _ = attention64(q, k, v, 24 ** -0.5, visible(9, 14, None, 0))
            np.testing.assert_allclose(out, expected, atol=2e-5)
        start, ends = (np.array(x, np.int32) for x in ((0, 9), (0, 14)))
        packed = tandem.forward_varlen(q[0], k[0], v[0], cu_seqlens_q=start, cu_seqlens_k=ends, causal=True)
        np.testing.assert_allclose(packed, expected[0], atol=2e-5)

    def test_allocates_the_output_when_none_is_passed(self):
        q, k, v = (self.normal(1, 5, 2, 8, dtype=np.float16) for _ in "qkv")
        out = tandem.forward(q, k, v)
        self.assertEqual((out.shape, out.dtype), (q.shape, q.dtype))

    def assert_refused(self, pattern, *tensors, status="TANDEM_INVALID_ARGUMENT", **options):
        with self.assertRaisesRegex(tandem.TandemError, pattern) as caught:
            tandem.forward(*tensors, **options)
        self.assertEqual(caught.exception.status, status)

    def test_refuses_what_contradicts_itself(self):
        q, k, v = (self.normal(1, 5, 2, 8) for _ in "qkv")
        self.assert_refused("causal and window", q, k, v, causal=True, window=(1, 0))
        self.assert_refused("scale is -1", q, k, v, scale=-1.0)
        self.assert_refused("scale is 0", q, k, v, scale=0.0)
        self.assert_refused("backend is 'gpu'", q, k, v, backend="gpu")
        self.assert_refused("study.overlap is 'four-stage'; allowed are auto, serial", q, k, v,
                            study={"overlap": "four-stage"})
        self.assert_refused("study.turn is 'last'", q, k, v, study={"turn": "last"})
        self.assert_refused("k has 3 dimensions", q, k[0], v)
        self.assert_refused("v is float64", q, k, v.astype(np.float64))
        frozen = np.zeros_like(q)
        frozen.flags.writeable = False
        self.assert_refused("out is read-only", q, k, v, out=frozen)
        with self.assertRaisesRegex(TypeError, "builtins.list"):
            tandem.forward(q.tolist(), k, v)
        with self.assertRaisesRegex(TypeError, "q and k"):
            tandem.forward(q, k.tolist(), v)

    def test_refuses_numbers_that_ctypes_would_change(self):
        q, k, v = (self.normal(1, 5, 2, 8) for _ in "qkv")
        self.assert_refused("window is 18446744073709551616", q, k, v, window=(2**64, 0))
        self.assert_refused("window is 1.5", q, k, v, window=(1.5, 0))
        self.assert_refused("scale is", q, k, v, scale=1e39)

    def test_refuses_foreign_byte_order(self):
        q, k, v = (self.normal(1, 5, 2, 8) for _ in "qkv")
        foreign = k.astype(k.dtype.newbyteorder())
        self.assert_refused(r"k is of foreign byte order; pass k.astype\(", q, foreign, v)

    def test_refuses_a_negative_bit_that_it_would_not_see(self):
        import types
        from unittest import mock
        from tandem import _arrays

        class Tensor:
            ndim, dtype = 4, "torch.float32"

            def is_neg(self):
                return True

        with mock.patch.dict(sys.modules, torch=types.SimpleNamespace(Tensor=Tensor)):
            with self.assertRaisesRegex(tandem.TandemError, r"q has PyTorch's negative bit.*q.resolve_neg\(\)"):
                _arrays.describe(_arrays.TorchTensors(Tensor()), "q", Tensor())

    def test_empty_arrays_are_no_error(self):
        q, k, v = (self.normal(2, 5, 4, 8) for _ in "qkv")
        self.assertEqual(tandem.forward(q[:, :0], k, v).shape, (2, 0, 4, 8))
        self.assertEqual(tandem.forward(q[:0], k[:0], v[:0]).shape, (0, 5, 4, 8))
        self.assertEqual(tandem.forward(q[:, :, :0].transpose(3, 2, 1, 0).transpose(3, 2, 1, 0), k[:, :, :0],
                                        v[:, :, :0]).shape, (2, 5, 0, 8))
        out, lse = tandem.forward(q, k[:, :0], v[:, :0], return_lse=True)
        self.assertTrue((out == 0).all() and (lse == -np.inf).all())

    def test_a_child_process_of_fork_may_call(self):
        import multiprocessing
        q, k, v = (self.normal(4, 64, 4, 8) for _ in "qkv")
        here = tandem.forward(q, k, v)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for there in pool.starmap_async(tandem.forward, [(q, k, v)] * 4).get(timeout=60):
                np.testing.assert_array_equal(there, here)

    def test_passes_on_the_library_s_own_refusals(self):
        q, k, v = (self.normal(1, 5, 8, 8) for _ in "qkv")
        out = np.full_like(q, np.nan)
        self.assert_refused("heads", q, k[:, :, :3], v[:, :, :3], out=out)
        self.assert_refused("stride", q.transpose(0, 1, 3, 2), k, v, out=out)
        self.assert_refused(r"^TANDEM_INVALID_ARGUMENT: out\.shape\[1\]", q, k, v, out=np.zeros_like(q[:, :4]))
        self.assert_refused(r"out's address is .* overlap those of q \(q's address", q, k, v, out=q)
        self.assertTrue(np.isnan(out).all())

    def test_the_cpu_ignores_what_is_asked_of_a_kernel(self):
        q, k, v = (self.normal(1, 20, 2, 8) for _ in "qkv")
        self.check(q, k, v, visible(20, 20, None, None), study={"overlap": "three-stage", "turn": "pingpong"})

    def test_tells_what_is_built(self):
        self.assertRegex(tandem.version(), r"^\d+\.\d+\.\d+$")
        self.assertGreaterEqual(tandem.info()["cpu_threads"], 1)


class LoadingTest(unittest.TestCase):
    def test_a_missing_library_says_how_to_name_it(self):
        from unittest import mock
        from tandem import _library
        with mock.patch.dict(os.environ), mock.patch("ctypes.util.find_library", return_value=None):
            os.environ.pop("TANDEM_LIBRARY")
            with self.assertRaisesRegex(OSError, "TANDEM_LIBRARY"):
                _library.library_path()


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}")
    unittest.main()
