# SPDX-License-Identifier: Apache-2.0
"""tandem.torch: its operators under torch.compile, autograd, autocast, streams and CUDA graphs; on the CPU, and on a
Hopper GPU where there is one."""

import unittest
import unittest.mock

from with_torch import DEVICES, SEED  # ends here without PyTorch

import torch

import tandem
import tandem.torch
from tandem.torch import _call, _native, _ops, attention, decode, merge

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def plain(q, k, v, causal=False, scale=None, **options):
    """Attention by its definition, in float32 or better; b, s, h, d. options: softcap, sinks."""
    softcap, sinks = options.pop("softcap", 0.0), options.pop("sinks", None)
    assert not options
    q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + k.shape[1] - q.shape[1])
        scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:  # one more key, whose value is 0
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], dim=-1)
        v = torch.cat([v, torch.zeros_like(v[:, :1])], dim=1)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v), scores.logsumexp(-1).transpose(1, 2)


class OnEveryDevice(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        torch._dynamo.reset()

    def tensors(self, device, sq=33, sk=40, *, dtype=None, grad=False, heads=(4, 2), d=64):
        dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        shapes = ((2, sq, heads[0], d), (2, sk, heads[1], d), (2, sk, heads[1], d))
        return [torch.randn(shape, dtype=dtype, device=device, requires_grad=grad) for shape in shapes]

    def assert_near(self, result, expected, factor=1, dtype=None):
        """dtype: what the result was computed from, if it is less exact than the result's own."""
        self.assertEqual(result.shape, expected.shape)
        atol = factor * TOLERANCE[dtype or result.dtype]
        torch.testing.assert_close(result.float(), expected.float(), rtol=0, atol=atol)

    def gradients(self, function, q, k, v):
        out = function(q, k, v)
        return torch.autograd.grad(out, (q, k, v), torch.ones_like(out) / 2, materialize_grads=True)


class AttentionTest(OnEveryDevice):
    def test_is_attention(self):
        for device in DEVICES:
            for options in ({}, {"causal": True}, {"scale": 0.2}, {"softcap": 3.0}):
                q, k, v = self.tensors(device)
                expected, lse = plain(q, k, v, **options)
                self.assert_near(attention(q, k, v, **options), expected)
                self.assert_near(attention(q, k, v, return_lse=True, **options)[1], lse, factor=10)

    def test_has_gradients_of_the_output_and_of_the_log_sum_exp(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, grad=True)
            for which in (0, 1):
                for causal in (False, True):
                    ours = self.gradients(lambda *x: attention(*x, causal=causal, return_lse=True)[which], q, k, v)
                    for result, expected in zip(ours, self.gradients(lambda *x: plain(*x, causal)[which], q, k, v)):
                        self.assert_near(result, expected, factor=4)

    def test_sinks_take_a_share_and_have_gradients(self):
        for device in DEVICES:
            sinks = torch.tensor([1.5, -20, 0.3, 4], device=device)
            for options in ({}, {"causal": True}):
                q, k, v = self.tensors(device, sq=45, grad=True)
                for with_sinks in (False, True):
                    inputs = [q, k, v, sinks.clone().requires_grad_(with_sinks)]
                    results = []
                    for function in (attention, plain):
                        own = {"return_lse": True} if function is attention else {}
                        out, lse = function(*inputs[:3], sinks=inputs[3], **options, **own)
                        loss = (out.float() * torch.linspace(-1, 1, out.shape[-1], device=device)).sum() + lse[:, 9:].sum()
                        results.append((out, *torch.autograd.grad(loss, inputs[:3 + with_sinks])))
                    for i, (result, expected) in enumerate(zip(*results)):
                        of_all_rows = 10 if i == 4 and q.dtype == torch.float32 else 1
                        self.assert_near(result, expected, factor=4 * of_all_rows, dtype=q.dtype)
                with torch.no_grad():
                    self.assert_near(attention(q, k, v, sinks=sinks, **options), plain(q, k, v, sinks=sinks, **options)[0])

    def test_variable_lengths_and_steps_have_sinks(self):
        for device in DEVICES:
            sinks = torch.tensor([1.5, -2, 0.3, 4], device=device, requires_grad=True)
            q, k, v = self.tensors(device, sq=20, sk=20, grad=True)
            starts = torch.tensor([0, 20, 40], dtype=torch.int32, device=device)
            packed = tandem.torch.attention_varlen(*(x.flatten(0, 1) for x in (q, k, v)), cu_seqlens_q=starts,
                                                   cu_seqlens_k=starts, causal=True, sinks=sinks).unflatten(0, (2, 20))
            expected = attention(q, k, v, causal=True, sinks=sinks)
            self.assert_near(packed, expected)
            dout = torch.randn_like(expected)
            for result, wanted in zip(*(torch.autograd.grad(out, (q, k, v, sinks), dout) for out in (packed, expected))):
                self.assert_near(result, wanted, factor=40)
            lengths = torch.tensor([20, 20], dtype=torch.int32, device=device)
            with torch.no_grad():
                step = decode(q[:, -3:].contiguous(), k, v, lengths, causal=True, sinks=sinks)
            self.assert_near(step, expected[:, -3:])

    def test_refuses_wrong_sinks(self):
        (q, k, v), lengths = self.tensors("cpu", sq=3), torch.tensor([4, 5], dtype=torch.int32)
        for pattern, sinks in (("sinks is float64 on cpu; it has to be float32 on cpu", torch.zeros(4).double()),
                               (r"sinks has shape \(3,\)", torch.zeros(3)),
                               ("4 contiguous numbers are needed", torch.zeros(8)[::2])):
            for call in (lambda: attention(q, k, v, sinks=sinks), lambda: decode(q, k, v, lengths, sinks=sinks)):
                with self.assertRaisesRegex(tandem.TandemError, pattern):
                    call()

    def test_gradcheck(self):
        shapes = ((1, 3, 2, 8), (1, 5, 1, 8), (1, 5, 1, 8))
        q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
        for options in ({"causal": True}, {"window": (2, 1), "softcap": 4.0, "scale": 0.7}):
            self.assertTrue(torch.autograd.gradcheck(lambda *x: attention(*x, return_lse=True, **options), (q, k, v),
                                                     eps=1e-2, atol=2e-3, rtol=1e-2))
        sinks = torch.randn(2, requires_grad=True)
        self.assertTrue(torch.autograd.gradcheck(lambda q, sinks: attention(q, k, v, return_lse=True, sinks=sinks),
                                                 (q, sinks), eps=1e-2, atol=2e-3, rtol=1e-2))

    def test_has_no_second_derivative_and_says_so(self):
        q, k, v = self.tensors("cpu", grad=True)
        (dq,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no double backward"):
            dq.sum().backward()

    def test_takes_tensors_that_are_not_contiguous(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, sq=40)
            expected = attention(q, k, v)
            self.assert_near(attention(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))), expected)
            self.assert_near(attention(*(x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v))), expected)
            negated = torch.complex(torch.zeros_like(q, dtype=torch.float32), -q.float()).conj().imag.to(q.dtype)
            self.assert_near(attention(negated, k, v), expected)
            view = torch.complex(torch.zeros_like(q.float()), -q.float()).conj().imag
            if device == "cpu":
                self.assertTrue(view.is_neg())
                self.assert_near(attention(view, k, v), expected)

    def test_functorch_sees_the_operator(self):
        """Tensors in a transform have no memory to show: whoever takes it all the same computes nonsense."""
        for device in DEVICES:
            q, k, v = self.tensors(device)
            expected = torch.stack([attention(q, k, x) for x in (v, 2 * v)])
            results = torch.func.vmap(lambda x: attention(q, k, x))(torch.stack([v, 2 * v]))
            self.assert_near(results, expected)
            with self.assertRaisesRegex(RuntimeError, "functorch"):  # PyTorch's operators in Python have none
                torch.func.grad(lambda x: attention(x, k, v).float().sum())(q)

    def test_autocast_chooses_the_dtype(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, dtype=torch.float32, grad=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                out = attention(q, k, v)
            self.assertEqual(out.dtype, torch.bfloat16)
            self.assert_near(out, plain(q, k, v)[0])
            out.float().sum().backward()
            self.assertEqual(q.grad.dtype, torch.float32)

    def test_refuses_what_contradicts_itself(self):
        q, k, v = self.tensors("cpu")
        for pattern, call in (("q has 3 dimensions", lambda: attention(q[0], k, v)),
                              ("k is float64", lambda: attention(q, k.double(), v)),
                              ("q is on cpu, k on meta",
                               lambda: tandem.torch._call.forward(q, k.to("meta"), v, (-1, -1), 0.0, 0.0)),
                              ("causal and window", lambda: attention(q, k, v, causal=True, window=(1, 1))),
                              ("window is", lambda: attention(q, k, v, window=(-3, 1))),
                              ("scale is 0", lambda: attention(q, k, v, scale=0)),
                              ("heads", lambda: attention(q, k[:, :, :1].repeat(1, 1, 3, 1), v))):
            with self.assertRaisesRegex(tandem.TandemError, pattern):
                call()

    def test_is_the_same_from_many_threads(self):
        import concurrent.futures
        cases = [self.tensors("cpu", sq=5 + i % 3) for i in range(12)]
        expected = [attention(*case) for case in cases]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for _ in range(10):
                for result, wanted in zip(pool.map(lambda case: attention(*case), cases), expected):
                    torch.testing.assert_close(result, wanted, rtol=0, atol=0)


@unittest.skipIf(_native._exchange() is None or _native._find() is None,
                 "needs libtandem_python beside libtandem, and PyTorch 2.10 or newer")
class NativeTest(OnEveryDevice):
    """Calls by libtandem_python do what those by ctypes do."""

    def test_is_loaded(self):
        self.assertEqual(str(type(_native.forward)), "<class 'builtin_function_or_method'>")

    def test_has_the_same_bits(self):
        for device in DEVICES:
            for mask in ((-1, -1), (-1, 0), (3, 5)):
                for scale, softcap, d in ((0.0, 0.0, 64), (0.3, 4.0, 72)):
                    q, k, v = self.tensors(device, sq=40, d=d)
                    q = q.transpose(1, 2).contiguous().transpose(1, 2)
                    expected, wanted_lse = _call.forward(q, k, v, mask, scale, softcap)
                    out, lse = torch.full_like(q, torch.nan), _call.empty_lse(q).fill_(torch.nan)
                    self.assertEqual(_native.forward(q, k, v, out, lse, *mask, scale, softcap, None), 0)
                    self.assertTrue(torch.equal(out, expected) and torch.equal(lse, wanted_lse))
                    out.fill_(torch.nan)
                    self.assertEqual(_native.forward(q, k, v, out, None, *mask, scale, softcap, None), 0)
                    self.assertTrue(torch.equal(out, expected))

    def test_gradients_have_the_same_bits(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, sq=40)
            out, lse = _call.forward(q, k, v, (-1, 0), 0.0, 3.0)
            dout, dlse = torch.randn_like(out), torch.randn_like(lse)
            for rows, sinks in (((lse, None), None), ((lse, dlse), None), ((lse, dlse), torch.rand(4, device=device))):
                wanted = _call.backward({"q": q, "k": k, "v": v, "o": out, "dout": dout}, *rows, ((-1, 0), 0.0, 3.0, True),
                                        sinks)
                gradients = _native.run_backward((q, k, v, out, dout), rows, (-1, 0, 0.0, 3.0, True), sinks)
                self.assertEqual(len(gradients), 3 if sinks is None else 4)
                for gradient, expected in zip(gradients, wanted):
                    self.assertTrue(torch.equal(gradient, expected))

    def test_an_eager_call_with_gradients_is_the_operator(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, grad=True)
            results = []
            for function in (lambda: attention(q, k, v, causal=True, return_lse=True),
                             lambda: torch.ops.tandem.forward(q, k, v, -1, 0, 0.0, 0.0, False)):
                out, lse = function()
                results.append((out, lse, *torch.autograd.grad((out.sum() + lse.sum()), (q, k, v))))
            for result, expected in zip(*results):
                self.assert_near(result, expected)
            out = attention(q, k, v)
            with self.assertRaisesRegex(NotImplementedError, "double backward"):
                (gradient,) = torch.autograd.grad(out.sum(), (q,), create_graph=True)
                gradient.sum().backward()

    def test_few_queries_on_many_keys_get_their_workspace(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, sq=9, sk=5000)
            for _ in range(3):
                self.assert_near(attention(q, k, v), plain(q, k, v)[0])

    def test_variable_lengths_have_the_same_bits(self):
        for device in DEVICES:
            q, k, v = (x.flatten(0, 1) for x in self.tensors(device, sq=40, sk=48))
            numbers = lambda *values: torch.tensor(values, dtype=torch.int32, device=device)
            pages = {"page_table": numbers(2, 1, 4, 0, 5, 3).reshape(2, 3), "seqused_k": numbers(40, 17)}
            paged = [x.reshape(6, 16, 2, 64) for x in (k, v)]
            for keys, options in (((k, v), {"cu_seqlens_q": numbers(0, 33, 71), "cu_seqlens_k": numbers(0, 17, 80)}),
                                  ((k, v), {"cu_seqlens_q": numbers(0, 33, 80), "cu_seqlens_k": numbers(0, 48, 96),
                                            "seqused_k": numbers(9, 48), "max_seqlen_q": 47, "max_seqlen_k": 48}),
                                  (paged, {"cu_seqlens_q": numbers(0, 33, 80), **pages})):
                expected = tandem.forward_varlen(q, *keys, causal=True, return_lse=True, **options)
                rows = int(options["cu_seqlens_q"][-1])
                for native in (_native.forward_varlen, None):
                    with unittest.mock.patch.object(_native, "forward_varlen", native):
                        results = tandem.torch.attention_varlen(q, *keys, causal=True, return_lse=True, **options)
                        for result, wanted in zip(results, expected):
                            self.assertTrue(torch.equal(result[:rows], wanted[:rows]))
            four = [x.reshape(2, -1, *x.shape[1:]) for x in (q, k, v)]
            expected = tandem.forward_varlen(*four, seqused_k=numbers(5, 30))
            self.assertTrue(torch.equal(tandem.torch.attention_varlen(*four, seqused_k=numbers(5, 30)), expected))
            with self.assertRaisesRegex(tandem.TandemError, "seqused_k has 3 numbers; 2 are needed"):
                tandem.torch.attention_varlen(*four, seqused_k=numbers(5, 30, 1), cu_seqlens_k=numbers(0, 48, 96))

    def test_leaves_to_the_other_way_what_it_does_not_know(self):
        q, k, v = self.tensors("cpu", sq=40)
        out = torch.empty_like(q)
        for call in ((q[0], k, v, out), (q, k.double(), v, out), (q, k, v.to("meta"), out),
                     (q.transpose(2, 3).contiguous().transpose(2, 3), k, v, out)):
            self.assertEqual(_native.forward(*call, None, -1, -1, 0.0, 0.0, None), _native.NOT_HERE)
        self.assertEqual(_native.forward(q, k, v, out), _native.NOT_HERE)
        self.assertEqual(_native.forward(q, k, v, out, None, "left", -1, 0.0, 0.0, None), _native.NOT_HERE)
        with self.assertRaisesRegex(tandem.TandemError, "head"):
            attention(q, k[:, :, :1].repeat(1, 1, 3, 1), v)

    def test_steps_have_the_same_bits(self):
        for device in DEVICES:
            for paged in (False, True):
                for rotated in (False, True):
                    self.check_step(device, paged, rotated)

    def check_step(self, device, paged, rotated):
        q, new_k, new_v = self.tensors(device, sq=2, sk=2)
        caches, options = self.tensors(device, sq=1, sk=64)[1:], {"causal": True, "return_lse": True}
        lengths = torch.tensor([3, 40], dtype=torch.int32, device=device)
        if paged:
            caches = [x.reshape(8, 16, 2, 64) for x in caches]
            options["page_table"] = torch.randperm(8).to(torch.int32).reshape(2, 4).to(device)
        if rotated:
            options |= {"rotary": tuple(torch.rand(2, 70, 16, device=device)), "rotary_interleaved": True}
        options["sinks"] = torch.randn(q.shape[2], device=device) if rotated else None
        results = []
        for native in (_native.decode, None):
            own = [x.clone() for x in caches]
            version = own[0]._version
            with unittest.mock.patch.object(_native, "decode", native):
                for _ in range(2):  # the first makes the scratch memory
                    results.append((*decode(q, *own, lengths, k_new=new_k, v_new=new_v, **options), *own))
            self.assertGreaterEqual(own[0]._version, version + 2)
        for result in results[1:]:
            for x, y in zip(result, results[0]):
                self.assertTrue(torch.equal(x, y))

    def test_a_step_on_the_host_leaves_a_device_s_scratch_memory_alone(self):
        (q, k, v), lengths = self.tensors("cpu", sq=1, sk=600), torch.tensor([600, 340], dtype=torch.int32)
        memory = torch.full((1 << 20,), 0xAB, dtype=torch.uint8)
        _native.lend(0, None, memory.data_ptr(), len(memory))  # as of the first device's default stream
        try:
            decode(q, k, v, lengths)
            self.assertTrue(bool((memory == 0xAB).all()))
        finally:
            _native.lend(0, None, None, 0)
            _ops._scratch._kept.clear()

    def test_a_step_without_new_tokens_or_log_sum_exp(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, sq=1)
            lengths = torch.tensor([40, 40], dtype=torch.int32, device=device)
            for _ in range(2):
                self.assert_near(decode(q, k, v, lengths), plain(q, k, v)[0])


class CompileTest(OnEveryDevice):
    def test_compiles_without_a_break_in_both_directions(self):
        def layer(q, k, v):
            return attention(2 * q, k, v, causal=True, softcap=20.0) + 1
        for device in DEVICES:
            sinks = torch.randn(4, device=device, requires_grad=True)
            with_sinks = lambda q, sinks: attention(q, q[:, :, :2], q[:, :, :2], sinks=2 * sinks)
            q = self.tensors(device, grad=True)[0]
            results = [torch.autograd.grad(own(q, sinks).float().sum(), (q, sinks))
                       for own in (torch.compile(with_sinks, fullgraph=True), with_sinks)]
            for result, expected in zip(*results):
                self.assert_near(result, expected, factor=20)
            compiled = torch.compile(layer, fullgraph=True, dynamic=True)
            for sq in (33, 7):
                q, k, v = self.tensors(device, sq=sq, grad=True)
                self.assert_near(compiled(q, k, v), layer(q, k, v), factor=2)
                for result, expected in zip(self.gradients(compiled, q, k, v), self.gradients(layer, q, k, v)):
                    self.assert_near(result, expected, factor=2)

    def test_variable_lengths_compile_without_a_break(self):
        for device in DEVICES:
            q, k, v = (x.flatten(0, 1) for x in self.tensors(device, sq=20, sk=20))
            starts = torch.tensor([0, 13, 40], dtype=torch.int32, device=device)
            layer = lambda *x: tandem.torch.attention_varlen(*x, cu_seqlens_q=starts, cu_seqlens_k=starts) * 1
            self.assert_near(torch.compile(layer, fullgraph=True)(q, k, v), layer(q, k, v))

    def test_a_compiled_step_appends(self):
        for device in DEVICES:
            step = self.step(device)
            compiled = torch.compile(lambda *x, **options: decode(*x, **options) * 1, fullgraph=True)
            (q, k, v, lengths), new = step
            k2, v2 = k.clone(), v.clone()
            expected = decode(q, k, v, lengths, causal=True, **new)
            self.assert_near(compiled(q, k2, v2, lengths, causal=True, **new), expected)
            self.assertTrue(torch.equal(k, k2) and torch.equal(v, v2))

    def step(self, device):
        q, new_k, new_v = self.tensors(device, sq=1, sk=1)
        k, v = self.tensors(device, sq=1, sk=16)[1:]
        lengths = torch.tensor([3, 12], dtype=torch.int32, device=device)
        return (q, k, v, lengths), {"k_new": new_k, "v_new": new_v}

    def test_a_step_refuses_what_contradicts_itself(self):
        (q, k, v, lengths), new = self.step("cpu")
        angles = torch.rand(16, 16)
        for pattern, call in (("lengths is int64", lambda: decode(q, k, v, lengths.long())),
                              ("lengths has shape", lambda: decode(q, k, v, lengths[:1])),
                              ("page_table has shape", lambda: decode(q, k, v, lengths, page_table=lengths)),
                              ("batch_index has strides",
                               lambda: decode(q, k, v, lengths, batch_index=torch.zeros(4, dtype=torch.int32)[::2])),
                              ("batch_index is from 0 to 2; page_table has rows 0 to 1",
                               lambda: decode(q, k.reshape(4, 8, 2, 64), v.reshape(4, 8, 2, 64), lengths,
                                              page_table=torch.zeros(2, 2, dtype=torch.int32),
                                              batch_index=torch.tensor([0, 2], dtype=torch.int32))),
                              ("of one shape", lambda: decode(q, k, v, lengths, rotary=(angles, angles[:8]))),
                              ("rotary has 1 dim", lambda: decode(q, k, v, lengths, rotary=(angles[0], angles[0]))),
                              ("k_new is float64", lambda: decode(q, k, v, lengths, k_new=new["k_new"].double(),
                                                                  v_new=new["v_new"]))):
            with self.subTest(pattern), self.assertRaisesRegex(tandem.TandemError, pattern):
                call()

    def test_the_operators_pass_opcheck(self):
        ops, options = torch.ops.tandem, (3, 0, 0.0, 0.0)
        for device in DEVICES:
            q, k, v = self.tensors(device)
            (q1, k_cache, v_cache, lengths), new = self.step(device)
            out, lse = ops.forward(q, k, v, *options, False)
            table = torch.arange(4, dtype=torch.int32, device=device).reshape(2, 2)
            angles = torch.rand(40, 16, device=device)
            packed, starts = [x.flatten(0, 1) for x in (q, k, v)], [
                torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (q.shape[1], k.shape[1])]
            calls = {ops.forward: (q, k, v, *options, False),
                     ops.forward_varlen: (*packed, *starts, None, None, q.shape[1], 0, *options, False),
                     ops.backward: (q, lse, q, k, v, out, lse, *options, True),
                     ops.backward_with_sinks: (q, lse, q, k, v, out, lse, *options, True, torch.rand(4, device=device)),
                     ops.decode: (q1, k_cache.reshape(4, 8, 2, 64), v_cache.reshape(4, 8, 2, 64), lengths, table, None,
                                  angles, angles, True, *options, 64),
                     ops.decode_append: (q1, k_cache, v_cache, *new.values(), lengths, *4 * [None], False, *options, 0),
                     ops.merge: (torch.stack([q, q]), torch.stack([lse, lse]), torch.float32)}
            for op, arguments in calls.items():
                with self.subTest(device=device, op=str(op)):
                    results = torch.library.opcheck(op.default, arguments)
                    self.assertEqual(set(results.values()), {"SUCCESS"})
            q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
            torch.library.opcheck(ops.forward.default, (q, k, v, *options, False))
            sinks = torch.rand(4, device=device, requires_grad=True)
            torch.library.opcheck(ops.forward.default, (q, k, v, *options, False, sinks))

    def test_meta_tensors_have_shapes(self):
        q, k, v = (x.to("meta") for x in self.tensors("cpu"))
        out, lse = attention(q, k, v, return_lse=True)
        self.assertEqual((out.shape, lse.shape, lse.dtype), (q.shape, q.shape[:3], torch.float32))

    def test_decode_and_merge_say_that_they_have_no_gradient(self):
        (q, k, v, lengths), _ = self.step("cpu")
        out = decode(q.requires_grad_(), k, v, lengths)
        with self.assertRaisesRegex(NotImplementedError, "tandem::decode"):
            out.sum().backward()
        out, _ = merge(q[None], torch.zeros(1, *q.shape[:3]))
        with self.assertRaisesRegex(NotImplementedError, "tandem::merge"):
            out.sum().backward()


@unittest.skipIf("cuda" not in DEVICES, "needs a Hopper GPU")
class CudaTest(OnEveryDevice):
    def test_runs_on_the_current_stream(self):
        q, k, v = self.tensors("cuda", sq=2048, sk=2048)
        expected, stream = attention(q, k, v), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late = q.clone()
            out = attention(late, k, v)
        self.assertFalse(stream.query())
        stream.synchronize()
        self.assertTrue(torch.equal(out, expected))

    def test_a_thread_that_has_done_nothing_yet_can_call(self):
        import threading
        q, k, v = self.tensors("cuda")
        expected, results = attention(q, k, v), []
        thread = threading.Thread(target=lambda: results.append(attention(q, k, v)))
        thread.start()
        thread.join()
        self.assertTrue(results and torch.equal(results[0], expected))

    def test_a_graph_replays_with_new_values_in_both_directions(self):
        q, k, v = self.tensors("cuda", grad=True)

        def both():
            out = attention(q, k, v, causal=True)
            return out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            both()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = both()
        with torch.no_grad():
            for x in (q, k, v):
                x.copy_(torch.randn_like(x))
        graph.replay()
        for result, expected in zip(captured, both()):
            self.assert_near(result, expected)

    def test_a_captured_step_reads_lengths_anew(self):
        q, k, v = self.tensors("cuda", sq=1, sk=512, heads=(8, 2))
        lengths = torch.tensor([5, 400], dtype=torch.int32, device="cuda")
        graph = torch.cuda.CUDAGraph()
        decode(q, k, v, lengths)
        with torch.cuda.graph(graph):
            out = decode(q, k, v, lengths)
        for values in ((512, 1), (77, 300)):
            lengths.copy_(torch.tensor(values))
            for _ in range(2):
                graph.replay()
            self.assert_near(out, decode(q, k, v, lengths))


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}, devices {', '.join(DEVICES)}")
    unittest.main()
