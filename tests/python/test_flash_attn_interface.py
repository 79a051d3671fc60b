# SPDX-License-Identifier: Apache-2.0
"""tandem.flash_attn_interface against attention by its definition, on the CPU. FlashAttention-3's own cases are run by
tools/fa3_cases."""

import functools
import unittest
import unittest.mock

from with_torch import SEED, Names  # ends here without PyTorch

import torch

from tandem import _flash_cache
from tandem import flash_attn_interface as flash


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


def plain(q, k, v, seen, slopes=None):
    """Of one sequence: s, h, d; queries without a key have output 0. slopes: of heads."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    if slopes is not None:
        distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
        scores = scores - slopes[:, None, None] * distance.abs()
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
    return torch.einsum("hij,jhd->ihd", weights, v)


def rotated(x, positions, cos, sin):
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
                                    (5, 9, 512, {"causal": True}), (5, 9, 300, {"chunk": 4}),
                                    (12, 5, 16, {"chunk": 2, "window": (1, 0)})):
            with self.subTest(sq=sq, sk=sk, dv=dv, **options):
                q, k, v = torch.randn(2, sq, 4, 16), torch.randn(2, sk, 2, 16), torch.randn(2, sk, 2, dv)
                inputs = [x.requires_grad_() for x in (q, k, v)]
                expected = torch.stack([plain(*x, visible(sq, sk, **options)) for x in zip(q, k, v)])
                call = functools.partial(flash.flash_attn_func, q, k, v, causal=options.get("causal", False),
                                         return_attn_probs=True, window_size=options.get("window", (-1, -1)),
                                         attention_chunk=options.get("chunk", 0))
                out, lse = call()
                self.assertEqual(lse.shape, (2, 4, sq))
                self.assert_near(out, expected)
                with torch.no_grad():  # chunks are one call then
                    for again, result in zip(call(), (out, lse)):
                        self.assert_near(again, result)
                ours, theirs = (torch.autograd.grad(x.sum(), inputs) for x in (out, expected))
                for gradient, wanted in zip(ours, theirs):
                    self.assert_near(gradient, wanted)

    def test_gradients_are_zeros_where_there_is_no_key(self):
        starts = torch.tensor([0, 3, 5], dtype=torch.int32)
        for chunk in (0, 4):
            q, k = torch.randn(1, 5, 2, 16, requires_grad=True), torch.randn(1, 0, 2, 16, requires_grad=True)
            for out in (flash.flash_attn_func(q, k, k, attention_chunk=chunk),
                        flash.flash_attn_varlen_func(q[0], k[0], k[0], starts, torch.zeros_like(starts), 3, 0,
                                                     attention_chunk=chunk)):
                self.assertFalse(any(x.any() for x in (out, *torch.autograd.grad(out.sum(), (q, k)))))

    def test_slopes_of_heads_or_of_sequences_and_heads(self):
        q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 21, 2, 16), torch.randn(2, 21, 2, 24)
        for slopes in (torch.rand(4), torch.rand(2, 4)):
            for options in ({}, {"causal": True}, {"causal": True, "attention_chunk": 6}):
                seen = visible(9, 21, options.get("causal", False), chunk=options.get("attention_chunk", 0))
                out = flash.flash_attn_func(q, k, v, alibi_slopes=slopes, **options)
                for i in range(2):
                    self.assert_near(out[i], plain(q[i], k[i], v[i], seen, slopes if slopes.dim() == 1 else slopes[i]))
        qkv = torch.randn(2, 9, 3, 4, 16)
        self.assert_near(flash.flash_attn_qkvpacked_func(qkv, alibi_slopes=torch.ones(4)),
                         flash.flash_attn_func(*qkv.unbind(2), alibi_slopes=torch.ones(4)))
        q.requires_grad_()
        with self.assertRaisesRegex(NotImplementedError, "alibi_slopes"):
            flash.flash_attn_func(q, k, v, alibi_slopes=torch.ones(4)).sum().backward()
        with self.assertRaisesRegex(NotImplementedError, "alibi_slopes with attention_chunk"):
            flash.flash_attn_func(q, k, v, alibi_slopes=torch.ones(4), attention_chunk=6)

    def test_values_of_another_head_dim_are_not_padded_without_gradients(self):
        q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 21, 2, 16), torch.randn(2, 21, 2, 40)
        starts = lambda n: torch.tensor([0, n, 2 * n], dtype=torch.int32)
        lengths = torch.tensor([21, 13], dtype=torch.int32)
        with unittest.mock.patch.object(torch.nn.functional, "pad", side_effect=AssertionError("padded")):
            out = flash.flash_attn_func(q, k, v, causal=True)
            packed = flash.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), starts(9), starts(21), 9, 21,
                                                  causal=True)
            cached = flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True)
        self.assert_near(packed.unflatten(0, (2, 9)), out)
        self.assert_near(cached[0], out[0])
        for i in range(2):
            self.assert_near(out[i], plain(q[i], k[i], v[i], visible(9, 21, causal=True)))
            n = int(lengths[i])
            self.assert_near(cached[i], plain(q[i], k[i, :n], v[i, :n], visible(9, n, causal=True)))

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
                              ("q_descale of torch.float32", lambda: flash.flash_attn_func(q, q, q, q_descale=q)),
                              ("float8_e5m2", lambda: flash.flash_attn_func(*[q.to(torch.float8_e5m2)] * 3)),
                              ("q and k above 256", lambda: flash.flash_attn_func(*[q.repeat(1, 1, 1, 8)] * 2, q))):
            with self.assertRaisesRegex(NotImplementedError, pattern):
                call()


class VarlenTest(FlashTest):
    def test_lengths_and_used_rows_mean_the_same(self):
        lengths_q, lengths_k, used_q, used_k = (5, 1, 12), (9, 4, 12), (4, 1, 7), (9, 0, 10)
        starts = lambda lengths: torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        q, k, v = (torch.randn(sum(n), h, 16, requires_grad=True) for n, h in
                   ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2)))
        for with_used in (False, True):
            for options in ({}, {"causal": True}, {"window_size": (3, 2)}, {"attention_chunk": 4}):
                own_q, own_k = (used_q, used_k) if with_used else (lengths_q, lengths_k)
                used = {name: torch.tensor(n, dtype=torch.int32) for name, n in
                        (("seqused_q", own_q), ("seqused_k", own_k)) if with_used}
                call = functools.partial(flash.flash_attn_varlen_func, q, k, v, starts(lengths_q), starts(lengths_k), 12,
                                         12, **used, **options)
                out = call()
                with torch.no_grad():  # chunks are one call then
                    without = call()
                gradients = torch.autograd.grad(out, (q, k, v), dout := torch.randn_like(out), retain_graph=True)
                total = 0
                for i in range(3):
                    a, b = sum(lengths_q[:i]), sum(lengths_k[:i])
                    rows, keys = slice(a, a + own_q[i]), slice(b, b + own_k[i])
                    seen = visible(own_q[i], own_k[i], options.get("causal", False),
                                   options.get("window_size", (-1, -1)), options.get("attention_chunk", 0))
                    expected = plain(q[rows], k[keys], v[keys], seen)
                    self.assert_near(out[rows], expected)
                    self.assert_near(without[rows], expected)
                    total = total + (expected * dout[rows]).sum()
                for gradient, expected in zip(gradients, torch.autograd.grad(total, (q, k, v))):
                    self.assert_near(gradient, expected)

    def test_slopes_go_by_the_used_rows(self):
        starts, used = torch.tensor([0, 5, 17], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int32)
        q, k, v, slopes = torch.randn(17, 4, 16), torch.randn(17, 2, 16), torch.randn(17, 2, 16), torch.rand(2, 4)
        out = flash.flash_attn_varlen_func(q, k, v, starts, starts, 12, 12, seqused_q=used, seqused_k=used,
                                           alibi_slopes=slopes)
        for i, (begin, n) in enumerate(((0, 4), (5, 7))):
            rows = slice(begin, begin + n)
            self.assert_near(out[rows], plain(q[rows], k[rows], v[rows], visible(n, n), slopes[i]))

    def test_rows_out_of_use_may_hold_anything(self):
        starts, used = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([3, 0], dtype=torch.int32)
        q, k, v = torch.randn(9, 2, 16), torch.randn(9, 2, 16), torch.randn(9, 2, 16)
        alone = flash.flash_attn_func(q[None, :3], k[None, :4], v[None, :4], causal=True)[0]
        q[3:] = torch.nan
        inputs = [x.requires_grad_() for x in (q, k, v)]
        out, lse = flash.flash_attn_varlen_func(q, k, v, starts, starts, 5, 5, seqused_q=used, causal=True,
                                                return_attn_probs=True)
        self.assert_near(out[:3], alone)
        for gradient in torch.autograd.grad(out, inputs, torch.ones_like(out)):
            self.assertTrue(bool(gradient.isfinite().all()))
            self.assertFalse(bool(gradient[4:].any()))


class CacheTest(FlashTest):
    """Random calls: contiguous or paged, appending, turning, padded on the left, ragged."""

    def draw(self, trial):
        pick = lambda *choices: choices[int(torch.randint(len(choices), ()))]
        self.sq, self.new = pick((1, 1), (4, 4), (5, 2), (20, 20), (3, 0), (17, 6))
        self.page_size, self.indexed, self.leftpad = pick(0, 4, 16), pick(True, False), pick(True, False)
        self.causal, self.chunk, self.rotary = pick(True, False), pick(0, 0, 7), pick(True, False) and self.new > 0
        self.slopes, self.dv = pick(None, None, torch.rand(4), torch.rand(3, 4)), pick(16, 16, 24)
        self.capacity = 64
        self.lengths = torch.randint(1, self.capacity - 20, (3,), dtype=torch.int32)
        self.entries = torch.randperm(5)[:3].to(torch.int32) if self.indexed else torch.arange(3, dtype=torch.int32)
        self.begins = (torch.rand(3) * self.lengths * self.leftpad).to(torch.int32)
        return f"trial {trial}: {vars(self)}"

    def test_random_calls_mean_the_same(self):
        for trial in range(30):
            with self.subTest(self.draw(trial)), torch.set_grad_enabled(trial % 2 == 0):  # the usual steps go two ways
                self.check()

    def check(self):
        rows = 5 if self.indexed else 3
        k_all, v_all = (torch.randn(rows, self.capacity, 2, d) for d in (16, self.dv))
        q, new_k, new_v = (torch.randn(3, n, heads, d) for n, heads, d in
                           ((self.sq, 4, 16), (self.new, 2, 16), (self.new, 2, self.dv)))
        cos, sin = (f(torch.rand(80, 8) * 6) for f in (torch.cos, torch.sin))
        k_cache, v_cache, options = k_all.clone(), v_all.clone(), {}
        if self.page_size:
            slots = self.capacity // self.page_size
            table = torch.randperm(rows * slots).to(torch.int32).reshape(rows, slots)
            k_cache, v_cache = (torch.empty(rows * slots, self.page_size, 2, x.shape[-1]).index_copy_(
                0, table.flatten().long(), x.reshape(-1, self.page_size, 2, x.shape[-1])) for x in (k_all, v_all))
            options["page_table"] = table
        options |= {"k": new_k, "v": new_v} if self.new else {}
        options |= {"rotary_cos": cos, "rotary_sin": sin} if self.rotary else {}
        options |= {"cache_batch_idx": self.entries} if self.indexed else {}
        options |= {"cache_leftpad": self.begins} if self.leftpad else {}
        out, lse = flash.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=self.lengths, causal=self.causal,
                                                 attention_chunk=self.chunk, return_softmax_lse=True,
                                                 alibi_slopes=self.slopes, **options)
        self.assertEqual(lse.shape, (3, 4, self.sq))
        for i in range(3):
            n, begin, entry = int(self.lengths[i]), int(self.begins[i]), int(self.entries[i])
            own_q, own_k = q[i], new_k[i]
            if self.rotary:
                step = torch.arange(self.sq) if self.causal else torch.zeros(self.sq, dtype=torch.long)
                own_q, own_k = rotated(own_q, n + step, cos, sin), rotated(own_k, n + torch.arange(self.new), cos, sin)
            keys = torch.cat([k_all[entry, begin:n], own_k])
            values = torch.cat([v_all[entry, begin:n], new_v[i]])
            seen = visible(self.sq, len(keys), self.causal, chunk=self.chunk)
            slopes = self.slopes if self.slopes is None or self.slopes.dim() == 1 else self.slopes[i]
            self.assert_near(out[i], plain(own_q, keys, values, seen, slopes))

    def test_rows_of_no_sequence_are_not_appended(self):
        """As CUDA graphs have them behind the last sequence. Head dim 20 is appended by PyTorch, and 16 by the library."""
        starts, used = torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([6, 2], dtype=torch.int32)
        table = torch.tensor([[0, 1, 0], [2, 0, 0]], dtype=torch.int32)  # slots out of use name page 0
        for cu_new in (starts, torch.zeros_like(starts), starts[:1].expand(3) + 8):
            for d, paged, dtype in ((16, True, torch.float32), (20, True, torch.float32), (20, False, torch.float32),
                                    (16, True, torch.float8_e4m3fn)):
                caches = [torch.randn(*((6, 4) if paged else (2, 9)), 1, d).to(dtype) for _ in "kv"]
                q, *new = (torch.randn(8, 1, d).to(dtype) for _ in "qkv")
                expected = [x.float() for x in caches]
                for x, rows in zip(expected, new):
                    for row, place in enumerate(((1, 2), (2, 2), (2, 3)) if paged else ((0, 6), (1, 2), (1, 3))):
                        if cu_new is starts:
                            x[place] = rows[row].float()
                with self.subTest(d=d, paged=paged, dtype=dtype, cu_new=cu_new.tolist()):
                    flash.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=used, cu_seqlens_q=starts, max_seqlen_q=2,
                                                  page_table=table if paged else None, cu_seqlens_k_new=cu_new, causal=True)
                    for x, wanted in zip(caches, expected):
                        self.assertTrue(torch.equal(x.float(), wanted))

    def test_a_second_part_of_queries_meets_the_values(self):
        for sq, rotary, paged in ((1, False, True), (4, True, False), (8, True, True)):
            k_all, v_all = torch.randn(3, 32, 1, 16), torch.randn(3, 32, 1, 48)
            q, qv, new_k, new_v = (torch.randn(3, sq, heads, d) for heads, d in ((4, 16), (4, 48), (1, 16), (1, 48)))
            lengths = torch.tensor([20, 3, 11], dtype=torch.int32)
            cos, sin = (f(torch.rand(80, 8) * 6) for f in (torch.cos, torch.sin))
            options = {"rotary_cos": cos, "rotary_sin": sin} if rotary else {}
            k_cache, v_cache = k_all.clone(), v_all.clone()
            if paged:
                k_cache, v_cache = (x.reshape(6, 16, 1, -1) for x in (k_cache, v_cache))
                options["page_table"] = torch.arange(6, dtype=torch.int32).reshape(3, 2)
            out = flash.flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, qv=qv, cache_seqlens=lengths,
                                                causal=True, **options)
            for i, n in enumerate(lengths.tolist()):
                own_q, own_k = q[i], new_k[i]
                if rotary:
                    own_q, own_k = (rotated(x, n + torch.arange(sq), cos, sin) for x in (own_q, own_k))
                values = torch.cat([v_all[i, :n], new_v[i]])
                keys = torch.cat([torch.cat([k_all[i, :n], own_k]), values], dim=-1)
                queries = torch.cat([own_q, qv[i]], dim=-1)  # plain's scale is that of both parts
                self.assert_near(out[i], plain(queries, keys, values, visible(sq, n + sq, True)))
        with self.assertRaisesRegex(NotImplementedError, "qv in decoding steps of up to 8 queries"):
            flash.flash_attn_with_kvcache(q.repeat(1, 2, 1, 1), k_cache, v_cache, qv=qv.repeat(1, 2, 1, 1),
                                          cache_seqlens=lengths)

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

    def test_values_may_have_their_own_head_dim(self):
        for sq, dv in ((1, 24), (1, 300), (12, 8)):
            q, k, v = torch.randn(2, sq, 4, 16), torch.randn(2, 32, 2, 16), torch.randn(2, 32, 2, dv)
            new_k, new_v, after = torch.randn(2, 1, 2, 16), torch.randn(2, 1, 2, dv), v.clone()
            out = flash.flash_attn_with_kvcache(q, k, after, new_k, new_v, cache_seqlens=9)
            self.assertTrue(torch.equal(after[:, 9:10], new_v))
            self.assert_near(out, flash.flash_attn_func(q, torch.cat([k[:, :9], new_k], 1),
                                                        torch.cat([v[:, :9], new_v], 1)))

    def test_an_int_is_every_sequence_s_length_and_metadata_is_taken(self):
        q, (k, v) = torch.randn(2, 1, 4, 16), torch.randn(2, 2, 32, 2, 16)
        metadata = flash.get_scheduler_metadata(2, 1, 32, 4, 2, 16, torch.tensor([9, 9], dtype=torch.int32))
        out = flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=9, scheduler_metadata=metadata)
        self.assert_near(out, flash.flash_attn_func(q, k[:, :9], v[:, :9]))


class CompileTest(FlashTest):
    """torch.compile sees through the functions without a break."""

    def check(self, function, *inputs):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        copies = [x.clone() for x in inputs]  # a step writes to its cache
        self.assert_near(compiled(*copies), function(*inputs))

    def test_the_functions(self):
        q, k, v = (torch.randn(2, 9, h, 16) for h in (4, 2, 2))
        self.check(lambda *x: flash.flash_attn_func(*x, causal=True) * 1, q, k, v)
        self.check(lambda *x: flash.flash_attn_func(*x, window_size=(3, 0), softcap=3.0, return_attn_probs=True)[1] * 1,
                   q, k, v)
        starts = torch.tensor([0, 4, 18], dtype=torch.int32)
        self.check(lambda *x: flash.flash_attn_varlen_func(*x, starts, starts, 14, 14, causal=True) * 1,
                   *(x.flatten(0, 1) for x in (q, k, v)))

    @torch.no_grad()
    def test_a_step(self):
        lengths = torch.tensor([3, 9], dtype=torch.int32)
        self.check(lambda *x: flash.flash_attn_with_kvcache(*x, cache_seqlens=lengths, causal=True) * 1,
                   torch.randn(2, 1, 4, 16), *torch.randn(2, 2, 32, 2, 16), *torch.randn(2, 2, 1, 2, 16))


class EightBitTest(FlashTest):
    """Values of 8 bits times their scales, against the same attention in float32."""

    def setUp(self):
        super().setUp()
        self.scales = {name: torch.rand(2, 2) + 0.5 for name in ("q_descale", "k_descale", "v_descale")}

    def draw(self, *shapes):
        """8-bit tensors and what they stand for."""
        tensors = [torch.randn(shape).to(torch.float8_e4m3fn) for shape in shapes]
        return tensors, [self.true(x, scale) for x, scale in zip(tensors, self.scales.values())]

    def true(self, x, scale):
        return x.float() * scale.repeat_interleave(x.shape[2] // 2, dim=1)[:, None, :, None]

    def assert_near(self, result, expected):
        self.assertEqual(result.dtype, torch.bfloat16)
        torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2)

    def test_fixed_lengths(self):
        for d in (32, 64):  # of the second v is brought into columns
            tensors, (q, k, v) = self.draw((2, 7, 4, d), (2, 19, 2, d), (2, 19, 2, d))
            self.assert_near(flash.flash_attn_func(*tensors, causal=True, **self.scales),
                             flash.flash_attn_func(q, k, v, causal=True))
            without = [x.float() for x in tensors]
            self.assert_near(flash.flash_attn_func(*tensors), flash.flash_attn_func(*without))

    def test_variable_lengths(self):
        tensors, (q, k, v) = self.draw((2, 7, 4, 32), (2, 19, 2, 32), (2, 19, 2, 32))
        starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (7, 19)]
        out = flash.flash_attn_varlen_func(*(x.flatten(0, 1) for x in tensors), *starts, 7, 19, causal=True,
                                           **self.scales)
        self.assert_near(out, flash.flash_attn_func(q, k, v, causal=True).flatten(0, 1))

    def test_a_cache_is_appended_to_and_turned(self):
        (q, k, v), _ = self.draw((2, 3, 4, 32), (2, 19, 2, 32), (2, 19, 2, 32))
        (_, new_k, new_v), _ = self.draw((2, 1, 2, 32), (2, 3, 2, 32), (2, 3, 2, 32))
        cos, sin = (f(torch.rand(32, 16) * 6).to(torch.float8_e4m3fn) for f in (torch.cos, torch.sin))
        lengths = torch.tensor([5, 16], dtype=torch.int32)
        rotary, caches = {"rotary_cos": cos, "rotary_sin": sin}, (k.clone(), v.clone())
        out = flash.flash_attn_with_kvcache(q, *caches, new_k, new_v, cache_seqlens=lengths, causal=True, **self.scales,
                                            **rotary)
        true = [self.true(x, scale) for x, scale in zip((q, k, v), self.scales.values())]
        _, scale_k, scale_v = self.scales.values()
        wide_rotary = {name: x.float() for name, x in rotary.items()}
        wide = flash.flash_attn_with_kvcache(*true, self.true(new_k, scale_k), self.true(new_v, scale_v),
                                             cache_seqlens=lengths, causal=True, **wide_rotary)
        torch.testing.assert_close(out.float(), wide, rtol=0.1, atol=0.1)  # the rotated keys are rounded to 8 bits
        for i, n in enumerate(lengths.tolist()):
            self.assertTrue(torch.equal(caches[1][i, n:n + 3].float(), new_v[i].float()))

    def test_a_step_reads_the_cache_as_it_is(self):
        (q, k, v), (true_q, true_k, true_v) = self.draw((2, 3, 4, 32), (2, 19, 2, 32), (2, 19, 2, 32))
        lengths = torch.tensor([5, 16], dtype=torch.int32)
        with unittest.mock.patch.object(_flash_cache, "widened", lambda x: x.to(torch.bfloat16) if x is q else self.fail()):
            out = flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True, **self.scales)
        self.assert_near(out, flash.flash_attn_with_kvcache(true_q, true_k, true_v, cache_seqlens=lengths, causal=True))
        with self.assertRaisesRegex(NotImplementedError, "q of torch.bfloat16 over a cache of torch.float8_e4m3fn"):
            flash.flash_attn_with_kvcache(true_q.bfloat16(), k, v, cache_seqlens=lengths)


class OperatorsTest(FlashTest):
    """torch.ops.flash_attn_3, by FlashAttention-3's names."""

    @classmethod
    def setUpClass(cls):
        flash.register_operators()
        cls.ops = torch.ops.flash_attn_3

    def test_are_defined_once(self):
        with self.assertRaisesRegex(RuntimeError, "defined already"):
            flash.register_operators()

    def test_forward_and_backward_of_fixed_lengths(self):
        for dv, options in ((16, {"is_causal": True}), (24, {"window_size_left": 3, "softcap": 5.0})):
            q, k, v = torch.randn(2, 7, 4, 16), torch.randn(2, 19, 2, 16), torch.randn(2, 19, 2, dv)
            inputs = [x.requires_grad_() for x in (q, k, v)]
            expected, wanted_lse = flash.flash_attn_func(
                *inputs, causal=options.get("is_causal", False), softcap=options.get("softcap", 0.0),
                window_size=(options.get("window_size_left", -1), -1), return_attn_probs=True)
            dout = torch.randn_like(expected)
            wanted = torch.autograd.grad(expected, inputs, dout)
            q, k, v = (x.detach() for x in (q, k, v))
            into = torch.empty_like(expected)
            out, lse, *rest = self.ops.fwd(q, k, v, out=into, **options)
            self.assertTrue(out.data_ptr() == into.data_ptr() and len(rest) == 2)
            self.assert_near(into, expected.detach())
            self.assert_near(lse, wanted_lse.detach())
            gradients = [torch.empty_like(x) for x in (q, k, v)]
            sums, *_ = self.ops.bwd(dout, q, k, v, out, lse, *gradients, **options)
            self.assert_near(sums, (dout * expected.detach()).sum(-1).transpose(1, 2))
            for gradient, expected_gradient in zip(gradients, wanted):
                self.assert_near(gradient, expected_gradient)

    def test_forward_and_backward_of_variable_lengths(self):
        starts, used = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([5, 4], dtype=torch.int32)
        for used_q in (used, None):
            q, k, v = (torch.randn(12, h, 16, requires_grad=True) for h in (4, 2, 2))
            expected = flash.flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, used_q, used, causal=True)
            dout = torch.randn_like(expected)
            wanted = torch.autograd.grad(expected, (q, k, v), dout)
            q, k, v = (x.detach() for x in (q, k, v))
            lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "seqused_q": used_q, "seqused_k": used,
                       "max_seqlen_q": 7, "max_seqlen_k": 7, "is_causal": True}
            out, lse, *_ = self.ops.fwd(q, k, v, **lengths)
            self.assert_near(out, expected.detach())
            gradients = [torch.empty_like(x) for x in (q, k, v)]
            with Names() as names:
                self.ops.bwd(dout, q, k, v, out, lse, *gradients, **lengths)
            forward = [] if used_q is None else ["tandem.forward_varlen.default"]  # run again, with rows moved
            self.assertEqual([name for name in names.seen if name.startswith("tandem.")],
                             forward + ["tandem.backward_varlen.default"])
            for gradient, expected_gradient in zip(gradients, wanted):
                self.assert_near(gradient, expected_gradient)

    def test_a_cache_combining_and_metadata(self):
        q, (k, v), lengths = torch.randn(2, 1, 4, 16), torch.randn(2, 2, 32, 2, 16), torch.tensor([9, 4], dtype=torch.int32)
        metadata = self.ops.get_scheduler_metadata(2, 1, 32, 4, 2, 16, 16, torch.float32, lengths)
        out, *_ = self.ops.fwd(q, k, v, seqused_k=lengths, scheduler_metadata=metadata)
        self.assert_near(out, flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths))
        parts, lse = torch.randn(3, 2, 5, 4, 16), torch.randn(3, 2, 5, 4)
        for result, expected in zip(self.ops.fwd_combine(parts, lse), flash.flash_attn_combine(parts, lse)):
            self.assert_near(result, expected)


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}")
    unittest.main()
