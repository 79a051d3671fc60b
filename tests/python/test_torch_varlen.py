# SPDX-License-Identifier: Apache-2.0
"""Gradients of variable lengths in PyTorch: those of each sequence by itself, in one call, on every device."""

import contextlib
import unittest
import unittest.mock

from with_torch import DEVICES, SEED, Names  # ends here without PyTorch

import torch

import tandem
from tandem import flash_attn_interface as flash
from tandem.torch import _native, attention, attention_varlen

NAN = float("nan")


class Sequences:
    """Drawn sequences, each with tensors of its own, and all of them in a call's tensors, where what is of no sequence is
    NaN. In half of the cases keys lie in entries."""

    def __init__(self, random, device):
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        draw = lambda most: int(torch.randint(most, (1,), generator=random))
        count = 1 + draw(5)
        self.q_lens, self.k_lens = ([draw(50) for _ in range(count)] for _ in "qk")
        self.kv_heads, self.d = 1 + draw(2), 8 * (1 + draw(8))
        heads, self.entries = self.kv_heads * (1 + draw(3)), bool(draw(2))
        self.before = draw(4)
        normal = lambda n, h: torch.randn(n, h, self.d, generator=random).to(device, self.dtype)
        self.alone = [(normal(n, heads), normal(m, self.kv_heads), normal(m, self.kv_heads))
                      for n, m in zip(self.q_lens, self.k_lens)]
        self.dout = [normal(n, heads) for n in self.q_lens]
        self.dlse = [normal(n, heads)[..., 0].float() for n in self.q_lens]
        numbers = lambda x: torch.tensor(x, dtype=torch.int32, device=device)
        self.starts = [self.before + sum(self.q_lens[:i]) for i in range(count + 1)]
        self.lengths = {"cu_seqlens_q": numbers(self.starts)}
        self.room = max(self.k_lens) + 3
        if self.entries:
            self.lengths["seqused_k"] = numbers(self.k_lens)
        else:
            self.lengths["cu_seqlens_k"] = numbers([sum(self.k_lens[:i]) for i in range(count + 1)])
        self.options = ({"causal": True}, {}, {"window": (draw(9), draw(9))})[draw(3)] | {"softcap": 3.0 * (draw(3) == 0)}
        self.bounds = {"max_seqlen_q": max(self.q_lens), "max_seqlen_k": max(self.k_lens)} if draw(2) else {}
        self.sinks = torch.randn(heads, generator=random).to(device) if draw(2) else None

    def rows(self, parts):
        """Of all sequences: queries, packed."""
        gap = parts[0].new_full((self.before, *parts[0].shape[1:]), NAN)
        return torch.cat([gap, *parts, gap])

    def keys(self, parts):
        if not self.entries:
            return torch.cat(parts)
        whole = parts[0].new_full((len(parts), self.room, *parts[0].shape[1:]), NAN)
        for entry, x in zip(whole, parts):
            entry[:len(x)] = x
        return whole

    def tensors(self):
        q, k, v = zip(*self.alone)
        return [x.requires_grad_() for x in (self.rows(q), self.keys(k), self.keys(v))]

    def expected(self):
        """The gradients of every sequence by itself, where all are; of sinks the sum."""
        own = [[], [], []]
        sinks = None if self.sinks is None else self.sinks.clone().requires_grad_()
        for (q, k, v), dout, dlse in zip(self.alone, self.dout, self.dlse):
            inputs = [x[None].requires_grad_() for x in (q, k, v)]
            results = attention(*inputs, **self.options, sinks=sinks, return_lse=True)
            torch.autograd.backward(results, (dout[None], dlse[None]))
            for gradients, x in zip(own, inputs):
                gradients.append(x.grad[0])
        zeros = lambda x: torch.nan_to_num(x)
        return zeros(self.rows(own[0])), zeros(self.keys(own[1])), zeros(self.keys(own[2])), sinks if sinks is None else sinks.grad


class OnEveryDevice(unittest.TestCase):
    def setUp(self):
        self.random = torch.Generator().manual_seed(SEED)

    def on_both_ways(self, name):
        """Native calls where they are there, and those by ctypes."""
        yield contextlib.nullcontext()
        yield unittest.mock.patch.object(_native, name, None)

    def assert_near(self, result, expected, tolerance):
        scale = float(expected.abs().max()) + 1 if expected.numel() else 1
        self.assertEqual((result.shape, result.dtype), (expected.shape, expected.dtype))
        self.assertFalse(result.isnan().any())
        self.assertLessEqual(float((result - expected).abs().max()) if expected.numel() else 0, tolerance * scale)


class VarlenGradientsTest(OnEveryDevice):
    def gradients(self, batch):
        inputs = batch.tensors()
        sinks = None if batch.sinks is None else batch.sinks.clone().requires_grad_()
        results = attention_varlen(*inputs, **batch.lengths, **batch.bounds, **batch.options, sinks=sinks, return_lse=True)
        torch.autograd.backward(results, (batch.rows(batch.dout), batch.rows(batch.dlse)))
        return [x.grad for x in inputs] + [None if sinks is None else sinks.grad]

    def test_are_those_of_each_sequence_and_zero_elsewhere(self):
        for device in DEVICES:
            for case in range(25):
                batch = Sequences(self.random, device)
                with self.subTest(seed=SEED, device=device, case=case, q=batch.q_lens, k=batch.k_lens, options=batch.options,
                                  entries=batch.entries):
                    expected = batch.expected()
                    for way in self.on_both_ways("backward_varlen"):
                        with way:
                            results = self.gradients(batch)
                        for result, wanted in zip(results, expected):
                            if wanted is not None:
                                self.assert_near(result, wanted, 1e-5 if device == "cpu" else 2e-2)

    def test_are_one_call_that_reads_no_length(self):
        for device in DEVICES:
            batch = Sequences(self.random, device)
            while batch.sinks is None:
                batch = Sequences(self.random, device)
            with Names() as names:
                self.gradients(batch)
            own = [name for name in names.seen if name.startswith("tandem.")]
            self.assertEqual(own, ["tandem.forward_varlen.default", "tandem.backward_varlen_with_sinks.default"])
            self.assertNotIn("aten._local_scalar_dense.default", names.seen)

    def test_of_out_alone_and_of_an_expanded_gradient(self):
        for device in DEVICES:
            batch = Sequences(self.random, device)
            q, k, v = batch.tensors()
            out = attention_varlen(q, k, v, **batch.lengths, causal=True)
            first, past = batch.starts[0], batch.starts[-1]
            out[first:past].sum().backward()
            ones = torch.zeros_like(out)
            ones[first:past] = 1
            expected = [x.grad.clone() for x in (q, k, v)]
            q.grad = k.grad = v.grad = None
            attention_varlen(q, k, v, **batch.lengths, causal=True).backward(ones)
            for x, wanted in zip((q, k, v), expected):
                self.assertTrue(torch.equal(x.grad, wanted))

    def test_compile_without_a_break(self):
        for device in DEVICES:
            batch = Sequences(self.random, device)
            layer = lambda *x: attention_varlen(*x, **batch.lengths, **batch.bounds, causal=True) * 1
            results = []
            for own in (torch.compile(layer, fullgraph=True, backend="aot_eager"), layer):
                inputs = batch.tensors()
                own(*inputs).backward(batch.rows(batch.dout))
                results.append([x.grad for x in inputs])
            for result, expected in zip(*results):
                self.assertTrue(torch.equal(result, expected))

    def test_the_operators_pass_opcheck(self):
        ops, options = torch.ops.tandem, (3, 0, 0.0, 0.0, True)
        for device in DEVICES:
            q, k, v = (torch.randn(20, h, 16, device=device, dtype=torch.float16) for h in (4, 2, 2))
            starts = torch.tensor([0, 7, 20], dtype=torch.int32, device=device)
            lengths = starts, starts, None
            out, lse = ops.forward_varlen(q, k, v, *lengths, None, 13, 0, *options)
            call = q, lse, q, k, v, out, lse, *lengths, 13, 0, *options
            for op, arguments in ((ops.backward_varlen, call),
                                  (ops.backward_varlen_with_sinks, (*call, torch.rand(4, device=device)))):
                self.assertEqual(set(torch.library.opcheck(op.default, arguments).values()), {"SUCCESS"})
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            torch.library.opcheck(ops.forward_varlen.default, (*inputs, *lengths, None, 13, 0, *options))

    def test_paged_keys_and_other_columns_of_values_have_none(self):
        q, pages = torch.randn(5, 2, 16, requires_grad=True), torch.randn(2, 8, 2, 16)
        numbers = lambda *x: torch.tensor(x, dtype=torch.int32)
        out = attention_varlen(q, pages, pages, cu_seqlens_q=numbers(0, 5), seqused_k=numbers(9),
                               page_table=numbers(1, 0)[None])
        with self.assertRaisesRegex(NotImplementedError, "no derivative for paged keys"):
            out.sum().backward()
        k, v = torch.randn(5, 2, 16), torch.randn(5, 2, 32)
        out = attention_varlen(q, k, v, cu_seqlens_q=numbers(0, 5), cu_seqlens_k=numbers(0, 5))
        with self.assertRaisesRegex(NotImplementedError, "another head dim"):
            out.sum().backward()

    def test_there_are_no_second_ones(self):
        q = torch.randn(5, 2, 16, requires_grad=True)
        starts = torch.tensor([0, 5], dtype=torch.int32)
        out = attention_varlen(q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts)
        gradient, = torch.autograd.grad(out.sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no double backward"):
            gradient.sum().backward()


class FlashAttentionTest(OnEveryDevice):
    def test_packed_sequences_train(self):
        for device in DEVICES:
            batch = Sequences(self.random, device)
            while batch.entries:
                batch = Sequences(self.random, device)
            inputs = batch.tensors()
            starts = batch.lengths["cu_seqlens_q"], batch.lengths["cu_seqlens_k"]
            own = {"causal": batch.options.get("causal", False), "softcap": batch.options["softcap"],
                   "window_size": batch.options.get("window", (-1, -1))}
            batch.sinks, batch.dlse = None, [torch.zeros_like(x) for x in batch.dlse]
            with Names() as names:
                out = flash.flash_attn_varlen_func(*inputs, *starts, max(batch.q_lens), max(batch.k_lens), **own)
                out.backward(batch.rows(batch.dout))
            self.assertIn("tandem.backward_varlen.default", names.seen)
            for x, wanted in zip(inputs, batch.expected()):
                self.assert_near(x.grad, wanted, 1e-5 if device == "cpu" else 2e-2)


@unittest.skipIf("cuda" not in DEVICES, "needs a Hopper GPU")
class Plans(unittest.TestCase):
    def test_layers_share_what_one_call_plans(self):
        random = torch.Generator().manual_seed(SEED)
        used, tokens = [3000, 40, 517, 700], [0, 1, 41, 49, 349]
        draw = lambda *shape: torch.randn(*shape, generator=random).to("cuda", torch.bfloat16)
        numbers = lambda x: torch.tensor(x, dtype=torch.int32, device="cuda")
        layers = [(draw(349, 8, 64), draw(4, 3000, 2, 64), draw(4, 3000, 2, 64)) for _ in range(3)]
        options = {"cu_seqlens_q": numbers(tokens), "seqused_k": numbers(used), "causal": True}
        plan = tandem.forward_varlen_plan(*layers[0], **options)
        for repeat in range(2):
            for layer in layers:
                out = tandem.forward_varlen(*layer, **options, plan=plan, out=torch.full_like(layer[0], NAN))
                torch.testing.assert_close(out, tandem.forward_varlen(*layer, **options), rtol=2e-2, atol=2e-2)
        with self.assertRaisesRegex(tandem.TandemError, "plan has .* bytes; this call's has .*: make it by forward_varlen_plan"):
            tandem.forward_varlen(*layers[0], **options, plan=plan[:-1])
        with self.assertRaisesRegex(tandem.TandemError, "not aligned to 256 bytes; pass what forward_varlen_plan wrote to"):
            tandem.forward_varlen(*layers[0], **options, plan=torch.cat([plan, plan])[8:])


if __name__ == "__main__":
    unittest.main()
