# SPDX-License-Identifier: Apache-2.0
"""decode of the Python binding against float64 attention in NumPy, on the CPU backends."""

import os
import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem
from oracle import attention64, hadamard_matrix, rotated, shown, visible

SEED = int(os.environ.get("TANDEM_SEED", np.random.SeedSequence().entropy % 2**32))


class Step:
    """A random decoding step, whose unused rows are NaN and whose unused page table slots are wild."""

    def __init__(self, rng, dtype):
        self.rng = rng
        b, kv_heads, group, self.sq = rng.integers(1, 4), rng.integers(1, 3), rng.integers(1, 5), rng.integers(1, 9)
        self.new, self.d = rng.integers(0, 4), 8 * rng.integers(2, 9)
        self.page_size, slots = rng.choice([0, 1, 4, 16]), rng.integers(3, 6)
        self.capacity = int(slots * self.page_size if self.page_size else rng.integers(4, 80))
        self.new = int(min(self.new, self.capacity))
        self.lengths = rng.integers(0, self.capacity - self.new + 1, b).astype(np.int32)
        self.dtype = dtype
        self.q = self.normal(b, self.sq, kv_heads * group, self.d)
        self.k_new, self.v_new = (self.normal(b, self.new, kv_heads, self.d) for _ in "kv")
        entries, tokens = (b * slots, self.page_size) if self.page_size else (b, self.capacity)
        self.k_cache, self.v_cache = (np.full((entries, tokens, kv_heads, self.d), np.nan, dtype) for _ in "kv")
        self.pages = rng.permutation(b * slots).astype(np.int32).reshape(b, slots)
        for i, length in enumerate(self.lengths):
            for s in range(length):
                self.k_cache[self.place(i, s)], self.v_cache[self.place(i, s)] = self.normal(2, kv_heads, self.d)
        self.page_table = self.pages.copy()
        if self.page_size:
            for i, length in enumerate(self.lengths):
                self.page_table[i, -(-(length + self.new) // self.page_size):] = rng.integers(-2**31, 2**31)

    def normal(self, *shape):
        return self.rng.standard_normal(shape).astype(self.dtype)

    def place(self, i, s):
        return (self.pages[i, s // self.page_size], s % self.page_size) if self.page_size else (i, s)

    def options(self):
        options = {"page_table": self.page_table} if self.page_size else {}
        return options | ({"k_new": self.k_new, "v_new": self.v_new} if self.new else {})

    def keys_and_values(self, i):
        """Of sequence i after the step, from the caches."""
        places = [self.place(i, s) for s in range(self.lengths[i] + self.new)]
        return (np.array([cache[place] for place in places]).reshape(1, -1, *cache.shape[2:])
                for cache in (self.k_cache, self.v_cache))


class LatentStep(Step):
    """One whose values are the keys' first columns, in the same memory."""

    def __init__(self, rng, dtype):
        super().__init__(rng, dtype)
        columns = 8 * int(rng.integers(1, self.d // 8))
        self.v_cache, self.v_new = self.k_cache[..., :columns], self.k_new[..., :columns]


class DecodeTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def check(self, step, rotary=None, **options):
        expected = [(step.k_new[i], step.v_new[i]) for i in range(len(step.lengths))]
        if rotary:
            options |= {"rotary": rotary}
        workspace = tandem.DecodeWorkspace()
        out, lse = tandem.decode(step.q, step.k_cache, step.v_cache, step.lengths, return_lse=True, workspace=workspace,
                                 **step.options(), **options)
        interleaved = options.get("rotary_interleaved", False)
        tolerance = {"float32": 1e-5, "float16": 5e-3}[out.dtype.name]
        for i, length in enumerate(step.lengths):
            n = length + step.new
            q, (k, v), k_new = step.q[i], step.keys_and_values(i), expected[i][0].astype(np.float64)
            if rotary:
                q = rotated(q, np.arange(n - step.sq, n), *rotary, interleaved)
                k_new = rotated(k_new, np.arange(length, n), *rotary, interleaved)
            np.testing.assert_allclose(k[0, length:], k_new, rtol=tolerance, atol=tolerance)
            np.testing.assert_array_equal(v[0, length:], expected[i][1])
            mask = visible(step.sq, n, None, 0 if options.get("causal") else None, options.get("chunk", 0))
            if (tree := options.get("tree")) is not None:
                mask &= shown(tree[i], n)
            slopes = options.get("alibi_slopes")
            reference, lse64 = attention64(q[None], k, v, step.d ** -0.5, mask, sinks=options.get("sinks"),
                                           slopes=slopes[i] if slopes is not None and slopes.ndim == 2 else slopes)
            np.testing.assert_allclose(out[i], reference[0], rtol=0, atol=tolerance)
            np.testing.assert_allclose(lse[i], lse64[0], rtol=1e-3 if rotary else 1e-5, atol=1e-3 if rotary else 1e-4)

    def test_equals_float64_attention_on_random_steps(self):
        for _ in range(25):
            step = Step(self.rng, self.rng.choice([np.float32, np.float16]))
            backend = str(self.rng.choice(["auto", "cpu", "reference"]))
            with self.subTest(q=step.q.shape, lengths=step.lengths, new=step.new, page_size=step.page_size):
                self.check(step, causal=bool(self.rng.integers(2)), backend=backend)

    def test_sequences_that_share_a_prefix_have_the_results_that_they_have_alone(self):
        sizes, page_size, shared, own = self.rng.integers(1, 4, 3), 8, 3, 2  # pages of a prefix, of a sequence
        b = int(sizes.sum())
        pages = self.rng.permutation(shared * len(sizes) + own * b).astype(np.int32)
        tables = [np.concatenate([pages[shared * g:shared * (g + 1)], pages[shared * len(sizes) + own * i:][:own]])
                  for i, g in enumerate(np.repeat(range(len(sizes)), sizes))]
        k, v = self.rng.standard_normal((2, len(pages), page_size, 2, 16), np.float32)
        q = self.rng.standard_normal((b, 2, 4, 16), np.float32)
        lengths = self.rng.integers(shared * page_size, (shared + own) * page_size + 1, b).astype(np.int32)
        options = {"page_table": np.stack(tables), "causal": True}
        alone = tandem.decode(q, k, v, lengths, **options)
        prefixes = {"cu_prefix_groups": np.concatenate([[0], sizes.cumsum()]).astype(np.int32),
                    "prefix_lengths": self.rng.integers(0, shared * page_size + 1, len(sizes)).astype(np.int32)}
        for backend in ("auto", "cpu", "reference"):
            out = tandem.decode(q, k, v, lengths, backend=backend, **options, **prefixes)
            np.testing.assert_allclose(out, alone, rtol=0, atol=1e-5)

    def test_says_what_is_wrong_with_prefixes(self):
        step = Step(self.rng, np.float32)
        cu, lengths = np.array([0, 1], np.int32), np.array([0], np.int32)
        for given, words in (({"prefix_lengths": lengths}, "belong together"),
                             ({"cu_prefix_groups": cu}, "belong together"),
                             ({"cu_prefix_groups": cu[:1], "prefix_lengths": lengths}, "one more than there are groups"),
                             ({"cu_prefix_groups": cu.astype(np.int64), "prefix_lengths": lengths}, "is int64")):
            with self.assertRaisesRegex(tandem.TandemError, words):
                tandem.decode(step.q, step.k_cache, step.v_cache, step.lengths, **step.options(), **given)

    def test_values_may_be_the_first_columns_of_the_keys(self):
        for _ in range(10):
            step = LatentStep(self.rng, self.rng.choice([np.float32, np.float16]))
            with self.subTest(q=step.q.shape, v=step.v_cache.shape, lengths=step.lengths, new=step.new):
                self.check(step, causal=True, backend=str(self.rng.choice(["auto", "cpu", "reference"])))

    def test_latent_attention_of_576_and_512_columns(self):
        cache, q = (self.rng.standard_normal(shape).astype(np.float32) for shape in ((2, 70, 1, 576), (2, 2, 16, 576)))
        lengths = np.array([70, 33], np.int32)
        out = tandem.decode(q, cache, cache[..., :512], lengths, causal=True, scale=192 ** -0.5)
        self.assertEqual(out.shape, (2, 2, 16, 512))
        for i, n in enumerate(lengths):
            own = cache[i:i + 1, :n]
            expected, _ = attention64(q[i:i + 1], own, own[..., :512], 192 ** -0.5, visible(2, n, None, 0))
            np.testing.assert_allclose(out[i:i + 1], expected, rtol=0, atol=1e-5)

    def test_a_second_part_of_queries_meets_the_values(self):
        for d, dv in ((64, 512), (16, 24), (24, 8)):
            k_cache, v_cache = (self.rng.standard_normal((2, 70, 2, columns)).astype(np.float32) for columns in (d, dv))
            q, qv = (self.rng.standard_normal((2, 2, 4, columns)).astype(np.float32) for columns in (d, dv))
            lengths = np.array([70, 33], np.int32)
            for backend in ("cpu", "reference"):
                out = tandem.decode(q, k_cache, v_cache, lengths, causal=True, qv=qv, backend=backend)
                for i, n in enumerate(lengths):
                    keys = np.concatenate([k_cache[i:i + 1, :n], v_cache[i:i + 1, :n]], axis=-1)
                    expected, _ = attention64(np.concatenate([q, qv], axis=-1)[i:i + 1], keys, v_cache[i:i + 1, :n],
                                              (d + dv) ** -0.5, visible(2, n, None, 0))
                    np.testing.assert_allclose(out[i:i + 1], expected, rtol=0, atol=1e-5)

    def test_a_cache_of_int8_holds_keys_times_a_hadamard_matrix(self):
        b, heads, d, capacity, seed = 2, 2, 32, 40, 5
        lengths, matrix = np.array([30, 7], np.int32), hadamard_matrix(d, seed)
        for per_token, hadamard in ((False, None), (True, None), (False, seed), (True, seed)):
            scales = [(self.rng.random((b, capacity, heads) if per_token else (b, heads)) + 0.5).astype(np.float32) / 20
                      for _ in "kv"]
            caches = [self.rng.integers(-127, 128, (b, capacity, heads, d)).astype(np.int8) for _ in "kv"]
            q, k_new, v_new = (self.rng.uniform(-1, 1, (b, 1, heads, d)).astype(np.float32) for _ in range(3))
            out = tandem.decode(q, *caches, lengths, k_new=k_new, v_new=v_new, k_descale=scales[0],
                                v_descale=scales[1], hadamard=hadamard)
            for i, length in enumerate(lengths):
                k, v = (cache[i, :length + 1] * (scale[i, :length + 1] if per_token else scale[i][None])[..., None]
                        for cache, scale in zip(caches, scales))
                k = k if hadamard is None else k @ matrix
                np.testing.assert_allclose(k[length], k_new[i, 0], rtol=0, atol=0.15)
                expected, _ = attention64(q[i:i + 1], k[None], v[None], d ** -0.5, visible(1, length + 1, None, None))
                np.testing.assert_allclose(out[i:i + 1], expected, rtol=0, atol=1e-4)

    def test_refuses_a_matrix_that_there_is_not(self):
        q, lengths = np.zeros((1, 1, 1, 24), np.float32), np.zeros(1, np.int32)
        cache = np.zeros((1, 8, 1, 24), np.int8)
        self.assert_refused("hadamard is given, which needs a power of two", q, cache, cache.copy(), lengths, hadamard=3)
        wide = np.zeros((1, 8, 1, 24), np.float32)
        self.assert_refused("hadamard is given, but k_cache is float32", q, wide, wide.copy(), lengths, hadamard=3)

    def test_refuses_to_rotate_values(self):
        step = LatentStep(self.rng, np.float32)
        while not step.new:
            step = LatentStep(self.rng, np.float32)
        angles = np.ones((step.capacity, 8), np.float32)
        self.assert_refused("v_cache lies in k_cache", step.q, step.k_cache, step.v_cache, step.lengths,
                            rotary=(angles, angles), **step.options())

    def test_sinks_take_a_share(self):
        for backend in ("cpu", "reference"):
            for _ in range(5):
                step = Step(self.rng, np.float32)
                sinks = (3 * self.rng.standard_normal(step.q.shape[2])).astype(np.float32)
                sinks[0] = self.rng.choice([-np.inf, 300, 0])
                with self.subTest(q=step.q.shape, lengths=step.lengths, sinks=sinks):
                    self.check(step, causal=True, backend=backend, sinks=sinks)

    def test_scores_fall_with_distance_drafts_branch_and_chunks_hide(self):
        for backend in ("cpu", "reference"):
            for case in range(20):
                step = Step(self.rng, np.float32)
                b, sq, heads = step.q.shape[:3]
                all_options = {"alibi_slopes": self.rng.random((b, heads) if case % 2 else heads).astype(np.float32),
                               "tree": self.rng.integers(0, 2**sq, (b, sq), np.uint64), "chunk": int(self.rng.integers(1, 40)),
                               "sinks": self.rng.standard_normal(heads).astype(np.float32)}
                options = {name: x for name, x in all_options.items() if self.rng.integers(2)}
                with self.subTest(q=step.q.shape, lengths=step.lengths, **options):
                    self.check(step, causal=bool(case % 3), backend=backend, **options)

    def test_rotary_embedding_turns_queries_and_new_keys(self):
        for interleaved in (False, True):
            for _ in range(5):
                step = Step(self.rng, np.float32)
                dim = 16 * self.rng.integers(1, step.d // 16 + 1)
                angles = np.arange(step.capacity)[:, None] * 100.0 ** (-np.arange(dim // 2) / dim)
                rotary = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
                with self.subTest(q=step.q.shape, dim=dim, interleaved=interleaved):
                    self.check(step, rotary, rotary_interleaved=interleaved, causal=True)

    def test_batch_index_names_the_entries(self):
        q, cache = self.rng.standard_normal((2, 1, 2, 8)), self.rng.standard_normal((2, 5, 4, 2, 8))
        q, (k, v) = q.astype(np.float32), cache.astype(np.float32)
        lengths = np.array([4, 3], np.int32)
        out = tandem.decode(q, k, v, lengths, batch_index=np.array([3, 1], np.int32))
        np.testing.assert_array_equal(out, tandem.decode(q, k[[3, 1]], v[[3, 1]], lengths))

    def test_the_host_needs_no_plan(self):
        step = Step(self.rng, np.float32)
        self.assertIsNone(tandem.decode_plan(step.q, step.k_cache, step.v_cache, step.lengths, **step.options()))

    def assert_refused(self, pattern, *tensors, **options):
        with self.assertRaisesRegex(tandem.TandemError, pattern) as caught:
            tandem.decode(*tensors, **options)
        self.assertEqual(caught.exception.status, "TANDEM_INVALID_ARGUMENT")

    def test_refuses_what_contradicts_itself(self):
        q, (k, v) = np.zeros((2, 1, 2, 16), np.float32), np.zeros((2, 2, 8, 2, 16), np.float32)
        lengths = np.array([3, 8], np.int32)
        step = q, k, v, lengths
        self.assert_refused("lengths is int64", q, k, v, lengths.astype(np.int64))
        self.assert_refused("lengths has 1 elements; q has a batch of 2", q, k, v, lengths[:1])
        self.assert_refused("lengths has strides", q, k, v, np.zeros(4, np.int32)[::2])
        self.assert_refused("page_table has 1 dimensions", *step, page_table=lengths)
        self.assert_refused("page_table has 1 rows", *step, page_table=lengths[None])
        self.assert_refused("batch_index is uint8", *step, batch_index=np.zeros(2, np.uint8))
        for wrong in (2, -1):
            self.assert_refused(f"batch_index is from .*{wrong}.*; page_table has rows 0 to 1", *step,
                                page_table=np.zeros((2, 1), np.int32), batch_index=np.array([wrong, 1], np.int32))
        self.assert_refused("split_size is 18446744073709551680", *step, split_size=2**64 + 64)
        self.assert_refused(r"^TANDEM_INVALID_ARGUMENT: k_cache\.shape\[0\]", q, k[:1], v[:1], lengths)
        self.assert_refused("study.kernel is 'fast'", *step, study={"kernel": "fast"})
        self.assert_refused("k_cache has 3 dimensions", q, k[0], v, lengths)
        self.assert_refused("split_size is 100", *step, split_size=100)
        self.assert_refused("sinks has 3 numbers; 2 are needed", *step, sinks=np.zeros(3, np.float32))
        self.assert_refused("sinks is float16", *step, sinks=np.zeros(2, np.float16))
        self.assert_refused("k_new is given, but v_new is not", *step, k_new=k[:, :1])
        self.assert_refused("v_new is given, but k_new is not", *step, v_new=k[:, :1])
        angles = np.zeros((8, 8), np.float32)
        self.assert_refused("of one shape and dtype", *step, rotary=(angles, angles[:4]))
        self.assert_refused("and contiguous", *step, rotary=(angles[::2], angles[::2]))
        with self.assertRaisesRegex(TypeError, "q and lengths"):
            tandem.decode(q, k, v, [3, 8])
        k.flags.writeable = False
        tandem.decode(q, k, v, lengths)
        self.assert_refused("k_cache is read-only", *step, k_new=q, v_new=q)

    def test_a_batch_of_nothing_has_a_page_table_too(self):
        q, pages = np.zeros((0, 3, 2, 8), np.float32), np.zeros((4, 16, 2, 8), np.float32)
        out = tandem.decode(q, pages, pages, np.zeros(0, np.int32), page_table=np.zeros((0, 3), np.int32))
        self.assertEqual(out.shape, q.shape)


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}")
    unittest.main()
