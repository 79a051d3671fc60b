# SPDX-License-Identifier: Apache-2.0
"""tandem.flash_attn_interface against attention by its definition, on the CPU. FlashAttention-3's own cases are run by
tools/fa3_cases."""

import os
import sys
import unittest

try:
    import torch
except ImportError:
    print("SKIPPED: the tests of tandem.flash_attn_interface need PyTorch 2.4 or newer")
    sys.exit(77)

from tandem import flash_attn_interface as flash

SEED = int(os.environ.get("TANDEM_SEED", torch.seed() % 2**32))


def visible(sq, sk, causal=False, window=(-1, -1), chunk=0):
    """sq x sk: which keys each query sees; queries end at the last key."""
    query, key = torch.arange(sq)[:, None] + sk - sq, torch.arange(sk)[None]
    left, right = window[0], 0 if causal else window[1]
    seen = torch.ones(sq, sk, dtype=torch.bool)
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    if chunk:
        seen &= key // chunk == torch.div(query, chunk, rounding_mode="floor")
    return seen


def plain(q, k, v, seen):
    """Of one sequence: s, h, d; queries without a key have output 0."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
    return torch.einsum("hij,jhd->ihd", weights, v)


def turned(x, positions, cos, sin):
    """s, h, d; pairs of neighbouring columns."""
    half, angles = cos.shape[1], torch.complex(cos, sin)[positions][:, None]
    pairs = torch.view_as_complex(x[..., :2 * half].reshape(*x.shape[:-1], half, 2).contiguous())
    return torch.cat([torch.view_as_real(pairs * angles).flatten(-2), x[..., 2 * half:]], -1)


class FlashTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)

    def assert_near(self, result, expected):
        torch.testing.assert_close(result, expected, rtol=0, atol=3e-5)


class FixedLengthTest(FlashTest):
    def test_masks_chunks_and_head_dims_mean_the_same(self):
        for sq, sk, dv, options in ((7, 19, 16, {}), (19, 7, 16, {"causal": True}), (9, 21, 24, {"window": (3, 1)}),
                                    (9, 21, 8, {"causal": True, "window": (4, -1)}), (10, 23, 16, {"chunk": 4}),
                                    (23, 23, 16, {"chunk": 6, "causal": True}), (5, 9, 16, {"chunk": 50}),
                                    (12, 5, 16, {"chunk": 2, "window": (1, 0)})):
            with self.subTest(sq=sq, sk=sk, dv=dv, **options):
                q, k, v = torch.randn(2, sq, 4, 16), torch.randn(2, sk, 2, 16), torch.randn(2, sk, 2, dv)
                inputs = [x.requires_grad_() for x in (q, k, v)]
                expected = torch.stack([plain(*x, visible(sq, sk, **options)) for x in zip(q, k, v)])
                out, lse = flash.flash_attn_func(q, k, v, causal=options.get("causal", False), return_attn_probs=True,
                                                 window_size=options.get("window", (-1, -1)),
                                                 attention_chunk=options.get("chunk", 0))
                self.assertEqual(lse.shape, (2, 4, sq))
                self.assert_near(out, expected)
                ours, theirs = (torch.autograd.grad(x.sum(), inputs) for x in (out, expected))
                for gradient, wanted in zip(ours, theirs):
                    self.assert_near(gradient, wanted)

    def test_packed_tensors_are_taken_apart(self):
        qkv = torch.randn(2, 9, 3, 4, 16)
        expected = flash.flash_attn_func(*qkv.unbind(2), causal=True)
        self.assert_near(flash.flash_attn_qkvpacked_func(qkv, causal=True), expected)
        self.assert_near(flash.flash_attn_qkvpacked_func(qkv.flatten(2, 3), causal=True, num_heads_q=4), expected)

    def test_combines_parts(self):
        o, lse = torch.randn(3, 2, 5, 4, 16), torch.randn(3, 2, 5, 4)
        out, total = flash.flash_attn_combine(o, lse, out_dtype=torch.bfloat16)
        self.assertEqual(out.dtype, torch.bfloat16)
        self.assert_near(total, lse.logsumexp(0))
        into = torch.empty(2, 5, 4, 16)
        self.assertIs(flash.flash_attn_combine(o, lse, out=into)[0], into)
        self.assert_near(into, (lse.softmax(0)[..., None] * o).sum(0))

    def test_what_is_not_served_is_named(self):
        q = torch.randn(1, 4, 2, 64)
        for pattern, call in (("qv", lambda: flash.flash_attn_func(q, q, q, qv=q)),
                              ("q_descale", lambda: flash.flash_attn_func(q, q, q, q_descale=q)),
                              ("float8", lambda: flash.flash_attn_func(*[q.to(torch.float8_e4m3fn)] * 3)),
                              ("head dims above 256", lambda: flash.flash_attn_func(q, q, q.repeat(1, 1, 1, 8)))):
            with self.assertRaisesRegex(NotImplementedError, pattern):
                call()


class VarlenTest(FlashTest):
    def test_lengths_and_used_rows_mean_the_same(self):
        lengths_q, lengths_k, used_q, used_k = (5, 1, 12), (9, 4, 12), (4, 1, 7), (9, 0, 10)
        starts = lambda lengths: torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        q, k, v = (torch.randn(sum(n), h, 16, requires_grad=True) for n, h in
                   ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2)))
        for with_used in (False, True):
            for options in ({"causal": True}, {"window_size": (3, 2)}, {"attention_chunk": 4}):
                own_q, own_k = (used_q, used_k) if with_used else (lengths_q, lengths_k)
                used = {name: torch.tensor(n, dtype=torch.int32) for name, n in
                        (("seqused_q", own_q), ("seqused_k", own_k)) if with_used}
                out = flash.flash_attn_varlen_func(q, k, v, starts(lengths_q), starts(lengths_k), 12, 12, **used,
                                                   **options)
                total = 0
                for i in range(3):
                    a, b = sum(lengths_q[:i]), sum(lengths_k[:i])
                    rows, keys = slice(a, a + own_q[i]), slice(b, b + own_k[i])
                    seen = visible(own_q[i], own_k[i], options.get("causal", False),
                                   options.get("window_size", (-1, -1)), options.get("attention_chunk", 0))
                    expected = plain(q[rows], k[keys], v[keys], seen)
                    self.assert_near(out[rows], expected)
                    total = total + expected.sum() - out[rows].sum()
                for gradient in torch.autograd.grad(total, (q, k, v)):
                    self.assert_near(gradient, torch.zeros_like(gradient))


class CacheTest(FlashTest):
    """Random calls: contiguous or paged, appending, turning, padded on the left, ragged."""

    def draw(self, trial):
        pick = lambda *choices: choices[int(torch.randint(len(choices), ()))]
        self.sq, self.new = pick((1, 1), (4, 4), (5, 2), (20, 20), (3, 0), (17, 6))
        self.page_size, self.indexed, self.leftpad = pick(0, 4, 16), pick(True, False), pick(True, False)
        self.causal, self.chunk, self.rotary = pick(True, False), pick(0, 0, 7), pick(True, False) and self.new > 0
        self.capacity = 64
        self.lengths = torch.randint(1, self.capacity - 20, (3,), dtype=torch.int32)
        self.entries = torch.randperm(5)[:3].to(torch.int32) if self.indexed else torch.arange(3, dtype=torch.int32)
        self.begins = (torch.rand(3) * self.lengths * self.leftpad).to(torch.int32)
        return f"trial {trial}: {vars(self)}"

    def test_random_calls_mean_the_same(self):
        for trial in range(30):
            with self.subTest(self.draw(trial)):
                self.check()

    def check(self):
        rows = 5 if self.indexed else 3
        k_all, v_all = torch.randn(2, rows, self.capacity, 2, 16)
        q, new_k, new_v = torch.randn(3, self.sq, 4, 16), *torch.randn(2, 3, self.new, 2, 16)
        cos, sin = (f(torch.rand(80, 8) * 6) for f in (torch.cos, torch.sin))
        k_cache, v_cache, options = k_all.clone(), v_all.clone(), {}
        if self.page_size:
            slots = self.capacity // self.page_size
            table = torch.randperm(rows * slots).to(torch.int32).reshape(rows, slots)
            k_cache, v_cache = (torch.empty(rows * slots, self.page_size, 2, 16).index_copy_(
                0, table.flatten().long(), x.reshape(-1, self.page_size, 2, 16)) for x in (k_all, v_all))
            options["page_table"] = table
        options |= {"k": new_k, "v": new_v} if self.new else {}
        options |= {"rotary_cos": cos, "rotary_sin": sin} if self.rotary else {}
        options |= {"cache_batch_idx": self.entries} if self.indexed else {}
        options |= {"cache_leftpad": self.begins} if self.leftpad else {}
        out, lse = flash.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=self.lengths, causal=self.causal,
                                                 attention_chunk=self.chunk, return_softmax_lse=True, **options)
        self.assertEqual(lse.shape, (3, 4, self.sq))
        for i in range(3):
            n, begin, entry = int(self.lengths[i]), int(self.begins[i]), int(self.entries[i])
            own_q, own_k = q[i], new_k[i]
            if self.rotary:
                step = torch.arange(self.sq) if self.causal else torch.zeros(self.sq, dtype=torch.long)
                own_q, own_k = turned(own_q, n + step, cos, sin), turned(own_k, n + torch.arange(self.new), cos, sin)
            keys = torch.cat([k_all[entry, begin:n], own_k])
            values = torch.cat([v_all[entry, begin:n], new_v[i]])
            seen = visible(self.sq, len(keys), self.causal, chunk=self.chunk)
            self.assert_near(out[i], plain(own_q, keys, values, seen))

    def test_ragged_queries_and_new_keys(self):
        k_cache, v_cache = torch.randn(2, 2, 32, 2, 16)
        before = k_cache.clone(), v_cache.clone()
        cu_q, cu_new = torch.tensor([0, 3, 14], dtype=torch.int32), torch.tensor([0, 3, 5], dtype=torch.int32)
        q, new_k, new_v = torch.randn(14, 4, 16), *torch.randn(2, 5, 2, 16)
        out = flash.flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, causal=True, cu_seqlens_q=cu_q,
                                            cu_seqlens_k_new=cu_new, max_seqlen_q=11,
                                            cache_seqlens=torch.tensor([7, 20], dtype=torch.int32))
        for i, (n, rows, added) in enumerate(((7, slice(0, 3), slice(0, 3)), (20, slice(3, 14), slice(3, 5)))):
            keys, values = (torch.cat([old[i, :n], new[added]]) for old, new in zip(before, (new_k, new_v)))
            self.assert_near(out[rows], plain(q[rows], keys, values, visible(rows.stop - rows.start, len(keys), True)))
            self.assertTrue(torch.equal(k_cache[i, :len(keys)], keys) and torch.equal(v_cache[i, :len(keys)], values))

    def test_an_int_is_every_sequence_s_length_and_metadata_is_taken(self):
        q, (k, v) = torch.randn(2, 1, 4, 16), torch.randn(2, 2, 32, 2, 16)
        metadata = flash.get_scheduler_metadata(2, 1, 32, 4, 2, 16, torch.tensor([9, 9], dtype=torch.int32))
        out = flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=9, scheduler_metadata=metadata)
        self.assert_near(out, flash.flash_attn_func(q, k[:, :9], v[:, :9]))


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}")
    unittest.main()
