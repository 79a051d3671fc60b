# SPDX-License-Identifier: Apache-2.0
"""8 bits by the Python binding, on the CPU: quantised tensors stand for what they came from, and scales of every shape
reach the library."""

import unittest

from with_torch import SEED  # ends here without PyTorch

import torch

import tandem
from tandem import torch as tandem_torch

KEYS_OF_POSITIONS = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]


def attention64(q, k, v, seen):
    """o and lse in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v), scores.logsumexp(-1).transpose(1, 2)


def by_key(columns, s):
    """b, d, heads, n by columns as b, s, heads, d."""
    b, d, heads, n = columns.shape
    keys = torch.tensor([16 * group + key for group in range(n // 16) for key in KEYS_OF_POSITIONS])
    x = torch.empty(b, n, heads, d)
    x[:, keys] = columns.float().permute(0, 3, 2, 1)
    return x[:, :s]


def times(x, scale, block=None):
    """x, b, s, heads, d, times b, heads or b, blocks, heads scales."""
    x = x.float()
    scale = scale[:, None] if scale.ndim == 2 else scale.repeat_interleave(block, dim=1)[:, :x.shape[1]]
    heads = 1 if scale.shape[2] == 1 else x.shape[2] // scale.shape[2]
    return x * scale.repeat_interleave(heads, dim=2)[..., None]


class EightBitTest(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED}")
        torch.manual_seed(SEED)

    def assert_near(self, result, expected, tolerance):
        torch.testing.assert_close(result.double(), expected.double(), rtol=tolerance, atol=tolerance)

    def assert_quantised(self, x, back):
        """Every element within half a step of e4m3, or of its smallest number."""
        step = torch.maximum(x.float().abs() * 2**-4, torch.tensor(2.0**-10) * x.float().abs().amax())
        self.assertTrue(((back - x.float()).abs() <= step).all())

    def test_quantised_elements_times_their_scales_are_near_the_originals(self):
        x = torch.randn(2, 200, 3, 64, dtype=torch.bfloat16) * torch.rand(2, 200, 3, 1).bfloat16() * 100
        bits, scale = tandem.quantize(x)
        self.assertEqual((bits.dtype, tuple(scale.shape)), (torch.float8_e4m3fn, (2, 2, 3)))
        self.assert_quantised(x, times(bits, scale, 128))
        columns, scale = tandem.quantize(x, by_column=True, block=64)
        self.assertEqual(tuple(columns.shape), (2, 64, 3, 208))
        self.assert_quantised(x, times(by_key(columns, 200), scale, 64))

    def test_int8_and_two_terms_are_finer(self):
        q, k, v = (torch.randn(2, s, 2, 64, dtype=torch.bfloat16) for s in (40, 150, 150))
        expected, _ = attention64(q, k, v, torch.ones(40, 150, dtype=torch.bool))
        errors = []
        for dtype, terms in (("float8_e4m3fn", 1), ("int8", 1), ("int8", 2)):
            (q8, qs), (k8, ks) = (tandem.quantize(x, dtype=dtype, hadamard=3) for x in (q, k))
            v8, vs = tandem.quantize(v, by_column=True, terms=terms)
            self.assertEqual((q8.dtype, tuple(v8.shape)), (getattr(torch, dtype), (2, 64 * terms, 2, 160)))
            out = tandem.forward(q8, k8, v8, q_descale=qs, k_descale=ks, v_descale=vs, values_by_column=True,
                                 out=torch.empty(q.shape))
            errors.append((out.double() - expected).square().mean().sqrt().item())
        self.assertLess(1.2 * errors[1], errors[0])
        self.assertLess(2 * errors[2], errors[1])

    def test_quantising_turns_rows_by_their_positions(self):
        x = torch.randn(2, 30, 2, 64)
        angles = torch.arange(100)[:, None] * 100.0 ** (-torch.arange(32) / 32)
        cos, sin, first = angles.cos(), angles.sin(), torch.tensor([0, 50], dtype=torch.int32)
        positions = first[:, None] + torch.arange(30)
        c, s = cos[positions][:, :, None], sin[positions][:, :, None]
        turned = torch.cat((x[..., :32] * c - x[..., 32:] * s, x[..., 32:] * c + x[..., :32] * s), dim=-1)
        for quantize in (tandem.quantize, tandem_torch.quantize):
            dtype = "int8" if quantize is tandem.quantize else torch.int8
            bits, scale = quantize(x, dtype=dtype, rotary=(cos, sin), first_positions=first)
            self.assertLessEqual((times(bits, scale, 128) - turned).abs().max().item(), 0.51 * scale.max().item())

    def test_given_scales_are_read(self):
        x = torch.randn(1, 5, 2, 16)
        scale = torch.full((1, 1, 2), 0.25)
        into = torch.empty(1, 5, 2, 16, dtype=torch.float8_e4m3fn)
        bits, same = tandem.quantize(x, scale=scale, block=0, out=into)
        self.assertTrue(bits is into and same is scale)
        self.assertTrue(torch.equal(bits.float(), (x * 4).to(torch.float8_e4m3fn).float()))

    def test_a_forward_over_quantised_tensors_is_near_that_over_the_originals(self):
        q, k, v = (torch.randn(2, s, h, 32, dtype=torch.bfloat16) for s, h in ((70, 4), (150, 2), (150, 2)))
        q8, q_scale = tandem_torch.quantize(q, hadamard=3)
        k8, k_scale = tandem_torch.quantize(k, hadamard=3)
        v8, v_scale = tandem_torch.quantize(v, by_column=True)
        out, lse = tandem_torch.attention_eight_bit(
            q8, k8, v8, q_descale=q_scale, k_descale=k_scale, v_descale=v_scale, values_by_column=True, causal=True,
            return_lse=True)
        self.assertEqual(out.dtype, torch.bfloat16)
        seen = torch.ones(70, 150).tril(80).bool()
        expected, expected_lse = attention64(q, k, v, seen)
        self.assert_near(out, expected, 0.2)
        self.assert_near(lse, expected_lse, 0.05)
        self.assertLess((out - expected).square().mean().sqrt(), 0.03)

    def test_elements_are_within_the_amplitude_with_which_fp16_holds_every_score(self):
        for d, most in ((16, 60.0), (64, 30.0), (128, 22.0), (256, 15.0)):
            self.assertEqual(tandem.score_amplitude(d), most)
            self.assertLessEqual(d * most**2, 65504)
            x = torch.randn(2, 150, 2, d) * torch.rand(2, 150, 2, 1) * 50
            for quantize in (tandem.quantize, tandem_torch.quantize):
                bits, scale = quantize(x, hadamard=3, amplitude=most)
                self.assertTrue(torch.equal(scale.log2(), scale.log2().round()))
                largest = torch.stack([part.float().abs().amax(dim=(1, 3)) for part in bits.split(128, dim=1)], dim=1)
                self.assertTrue(((largest <= most) & (2 * largest > 0.9 * most)).all())

    def test_the_best_scale_of_each_token_of_q_loses_less(self):
        q, k, v = (torch.randn(2, s, h, 64, dtype=torch.bfloat16) for s, h in ((70, 4), (150, 2), (150, 2)))
        most = tandem.score_amplitude(64)
        for quantize, forward in ((tandem.quantize, tandem.forward), (tandem_torch.quantize, tandem_torch.attention_eight_bit)):
            errors, rotated = [], times(*quantize(q, hadamard=3, dtype="int8" if quantize is tandem.quantize else torch.int8,
                                                  block=1), 1)
            for options in ({}, {"block": 1, "best_scale": True}):
                q8, qs = quantize(q, hadamard=3, amplitude=most, **options)
                errors.append((times(q8, qs, options.get("block", 128)) - rotated).square().mean().item())
            self.assertEqual(qs.shape, (2, 70, 4))
            self.assertLess(errors[1], 0.93 * errors[0])
            k8, ks = quantize(k, hadamard=3, amplitude=most)
            v8, vs = quantize(v, by_column=True)
            out = forward(q8, k8, v8, q_descale=qs, k_descale=ks, v_descale=vs, values_by_column=True, qk_amplitude=most)
            # The matrix leaves q k^T as it is.
            expected, _ = attention64(times(q8, qs, 1), times(k8, ks, 128), times(by_key(v8, 150), vs, 128),
                                      torch.ones(70, 150).bool())
            self.assertLess((out.double() - expected).square().mean().sqrt().item(), 0.005)
        with self.assertRaisesRegex(tandem.TandemError, "best_scale is True, but out.dtype is int8"):
            tandem.quantize(q, dtype="int8", best_scale=True)
        with self.assertRaisesRegex(tandem.TandemError, "best_scale is True, but scale is given"):
            tandem.quantize(q, scale=torch.ones(1, 1, 4), best_scale=True)

    def test_an_amplitude_that_is_told_changes_no_result_but_by_rounding(self):
        q, k, v = (torch.randn(1, 90, 2, 64, dtype=torch.bfloat16) for _ in range(3))
        most = tandem.score_amplitude(64)
        (q8, qs), (k8, ks) = (tandem.quantize(x, hadamard=3, amplitude=most) for x in (q, k))
        v8, vs = tandem.quantize(v, by_column=True)
        scales = {"q_descale": qs, "k_descale": ks, "v_descale": vs, "values_by_column": True, "causal": True}
        # The matrix leaves q k^T as it is.
        expected, _ = attention64(times(q8, qs, 128), times(k8, ks, 128), times(by_key(v8, 90), vs, 128),
                                  torch.ones(90, 90).tril().bool())
        for forward in (tandem.forward, tandem_torch.attention_eight_bit):
            out = forward(q8, k8, v8, qk_amplitude=most, **scales)
            self.assertLess((out.double() - expected).square().mean().sqrt().item(), 0.005)

    def test_shifts_are_taken_off_and_added_back(self):
        q, k, v = (torch.randn(2, s, h, 64) for s, h in ((70, 4), (150, 2), (150, 2)))
        k[..., ::8] += 10
        v += 1
        seen = torch.ones(70, 150).tril(80).bool()
        expected, expected_lse = attention64(q, k, v, seen)
        k_mean, v_mean = k.mean(dim=1), v.mean(dim=1)
        errors = []
        for quantize, forward in ((tandem.quantize, tandem.forward), (tandem_torch.quantize, tandem_torch.attention_eight_bit)):
            for shifts in (False, True):
                q8, qs, *dots = quantize(q, hadamard=3, k_shift=k_mean if shifts else None)
                k8, ks = quantize(k, hadamard=3, shift=k_mean if shifts else None)
                v8, vs = quantize(v, by_column=True, shift=v_mean if shifts else None)
                added = {"v_shift": v_mean, "q_dot_k_shift": dots[0]} if shifts else {}
                out, lse = forward(q8, k8, v8, q_descale=qs, k_descale=ks, v_descale=vs, values_by_column=True, causal=True,
                                   return_lse=True, **added)
                errors.append([(x.double() - y).square().mean().sqrt().item() for x, y in ((out, expected), (lse, expected_lse))])
            self.assertLess(1.5 * errors[-1][0], errors[-2][0])
            self.assertLess(1.5 * errors[-1][1], errors[-2][1])
        self.assertEqual(errors[:2], errors[2:])

    def test_shifts_of_wrong_shapes_are_named(self):
        x = torch.randn(1, 20, 2, 32)
        for name, shift, words in (("shift", torch.zeros(2, 32), "shift has 2 dimensions"),
                                   ("shift", torch.zeros(3, 2, 32), "shift.shape\\[0\\]"),
                                   ("k_shift", torch.zeros(1, 2, 16), "k_shift.shape\\[3\\]")):
            with self.assertRaisesRegex(tandem.TandemError, words):
                tandem.quantize(x, **{name: shift})
        x8 = torch.zeros(1, 20, 2, 32).to(torch.float8_e4m3fn)
        with self.assertRaisesRegex(tandem.TandemError, "q_dot_k_shift is given, but softcap is 5"):
            tandem.forward(x8, x8, x8, softcap=5, q_dot_k_shift=torch.zeros(1, 20, 2))
        with self.assertRaisesRegex(tandem.TandemError, "v_shift.shape\\[2\\]"):
            tandem.forward(x8, x8, x8, v_shift=torch.zeros(1, 3, 32))

    def test_scales_per_tensor_per_head_and_per_block_multiply(self):
        q, k, v = (torch.randn(2, s, h, 32).to(torch.float8_e4m3fn) for s, h in ((70, 4), (150, 2), (150, 2)))
        scales = {"q": torch.rand(1, 1) + 0.5, "k": torch.rand(2, 2) + 0.5, "v": torch.rand(2, 5, 2) + 0.5}
        expected, _ = attention64(*(times(x, scales[name], 32) for name, x in (("q", q), ("k", k), ("v", v))),
                                  torch.ones(70, 150).bool())
        out = torch.empty(2, 70, 4, 32)
        tandem.forward(q, k, v, out=out, descale_block=32, **{f"{name}_descale": x for name, x in scales.items()})
        self.assert_near(out, expected, 1e-4)
        numbers = [x.view(torch.uint8).numpy() for x in (q, k, v)]
        with self.assertRaisesRegex(tandem.TandemError, "q is uint8; allowed are .*float8_e4m3fn"):
            tandem.forward(*numbers, out=out.numpy())

    def test_what_contradicts_itself_is_refused_in_the_words_of_python(self):
        q = torch.randn(1, 5, 2, 16).to(torch.float8_e4m3fn)
        for pattern, options in ((r"^TANDEM_INVALID_ARGUMENT: q_descale.shape\[2\]", {"q_descale": torch.ones(1, 3)}),
                                 ("k_descale has 1 dimensions", {"k_descale": torch.ones(1)}),
                                 (r"v.shape\[1\] is 5", {"values_by_column": True}),
                                 ("qk_amplitude is 449.*from 0 to 448", {"qk_amplitude": 449.0})):
            with self.assertRaisesRegex(tandem.TandemError, pattern):
                tandem.forward(q, q, q, **options)
        for pattern, options in (("amplitude is 0.5.*from 1 to 448", {"amplitude": 0.5}),
                                 ("amplitude is 16, but out.dtype is int8", {"amplitude": 16.0, "dtype": "int8"}),
                                 ("amplitude is 16, but scale is given", {"amplitude": 16.0, "scale": torch.ones(1, 1, 2)})):
            with self.assertRaisesRegex(tandem.TandemError, pattern):
                tandem.quantize(torch.randn(1, 5, 2, 16), **options)
        with self.assertRaisesRegex(tandem.TandemError, "k_descale is given, but q is float32"):
            tandem.forward(*[torch.randn(1, 5, 2, 16)] * 3, k_descale=torch.ones(1, 1))

    def test_operators_are_those_that_torch_compile_expects(self):
        x = torch.randn(1, 20, 2, 16)
        bits, scale = tandem_torch.quantize(x)
        torch.library.opcheck(torch.ops.tandem.quantize, (x, True, 128, 5))
        torch.library.opcheck(torch.ops.tandem.quantize, (x, False, 128, 5, False, 1, None, None, False, None, 16.0))
        torch.library.opcheck(torch.ops.tandem.quantize_by, (x, scale, False, 128, None))
        torch.library.opcheck(torch.ops.tandem.forward_eight_bit,
                              (bits, bits, bits, scale, None, None, 128, False, -1, 0, 0.0, 0.0, torch.float16),
                              test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))

    def test_decode_appends_to_an_eight_bit_cache_and_attends_to_what_it_stands_for(self):
        b, heads, d, capacity = 2, 2, 64, 40
        lengths = torch.tensor([30, 7], dtype=torch.int32)
        for per_token in (False, True):
            shape = (b, capacity, heads) if per_token else (b, heads)
            scales = [torch.rand(shape) + 0.5 for _ in "kv"]
            caches = [torch.randn(b, capacity, heads, d).to(torch.float8_e4m3fn) for _ in "kv"]
            q, k_new, v_new = (torch.randn(b, 1, heads, d, dtype=torch.bfloat16) for _ in range(3))
            out = tandem.decode(q, *caches, lengths, k_new=k_new, v_new=v_new, k_descale=scales[0],
                                v_descale=scales[1])
            for i, length in enumerate(lengths.tolist()):
                k, v = (cache[i].float() * (scale[i] if per_token else scale[i].expand(capacity, heads))[..., None]
                        for cache, scale in zip(caches, scales))
                self.assert_near(k[length], k_new[i, 0].float(), 0.07)
                expected, _ = attention64(q[i, None], k[None, :length + 1], v[None, :length + 1],
                                          torch.ones(1, length + 1, dtype=torch.bool))
                self.assert_near(out[i, None], expected, 1e-2)

    def test_decode_is_the_same_step_by_the_operator_over_int8_with_a_hadamard_matrix(self):
        b, heads, d, capacity = 2, 2, 64, 40
        lengths = torch.tensor([30, 7], dtype=torch.int32)
        q, k_new, v_new = (torch.randn(b, 1, heads, d, dtype=torch.bfloat16) for _ in range(3))
        for hadamard in (None, 0, 9):
            for per_token in (False, True):
                shape = (b, capacity, heads) if per_token else (b, heads)
                scales = [(torch.rand(shape) + 0.5) / 40 for _ in "kv"]
                caches = [torch.randint(-127, 128, (b, capacity, heads, d), dtype=torch.int8) for _ in "kv"]
                results = []
                for decode in (tandem.decode, tandem_torch.decode, torch.compile(tandem_torch.decode, backend="eager")):
                    own = [x.clone() for x in (*caches, *scales)]
                    out = decode(q, own[0], own[1], lengths, k_new=k_new, v_new=v_new, k_descale=own[2],
                                 v_descale=own[3], hadamard=hadamard)
                    results.append((out, *own))
                for other in results[1:]:
                    for x, y in zip(results[0], other):
                        self.assertTrue(torch.equal(x, y))

    def test_descales_of_a_wide_cache_are_refused_by_name(self):
        q = torch.randn(1, 1, 1, 64)
        cache, lengths = torch.randn(1, 8, 1, 64), torch.zeros(1, dtype=torch.int32)
        with self.assertRaisesRegex(tandem.TandemError, "k_descale is given, but k_cache is float32"):
            tandem.decode(q, cache, cache.clone(), lengths, k_descale=torch.ones(1, 1))
        narrow = cache.to(torch.float8_e4m3fn)
        with self.assertRaisesRegex(tandem.TandemError, "k_descale and v_descale"):
            tandem.decode(q, narrow, narrow.clone(), lengths, k_descale=torch.ones(1, 1), v_descale=torch.ones(1, 8, 1))


if __name__ == "__main__":
    unittest.main()
