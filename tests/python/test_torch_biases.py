# SPDX-License-Identifier: Apache-2.0
"""tandem.torch with chunks of positions, ALiBi slopes, trees of drafts and values of another head dim; on the CPU, and on a
Hopper GPU where there is one. What they mean is said here in plain PyTorch."""

import random
import unittest
import unittest.mock

from with_torch import DEVICES, SEED  # ends here without PyTorch

import torch

import tandem
from tandem.torch import _native, attention, attention_varlen, decode


def plain(q, k, v, *, causal=False, chunk=0, alibi_slopes=None, tree=None, sinks=None, softcap=0.0):
    """out and log-sum-exp of one sequence, sq, heads, dv and sq, heads, by the definition in float64."""
    sq, sk = len(q), len(k)
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    place, key = torch.arange(sq, device=q.device)[:, None] + sk - sq, torch.arange(sk, device=q.device)[None]
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * (place - key).abs()
    seen = torch.ones(sq, sk, dtype=torch.bool, device=q.device)
    if causal:
        seen &= key <= place
    if chunk:
        seen &= (key // chunk == place // chunk) & (place >= 0)
    if tree is not None and sq <= 64:
        draft = key - (sk - sq)
        shown = (tree[:, None] >> draft.clamp(min=0)) & 1 == 1
        seen &= (draft < 0) | (tree[:, None] == 0) | shown
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, sq, 1)], dim=-1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    lse = scores.logsumexp(-1)
    weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    return torch.einsum("hij,jhd->ihd", weights, v), lse.T


class OnEveryDevice(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        self.random = random.Random(SEED)
        torch._dynamo.reset()

    def tensor(self, device, *shape):
        return torch.randn(shape, dtype=torch.float32 if device == "cpu" else torch.bfloat16, device=device)

    def numbers(self, device, *values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    def draw(self, device, batch, queries, heads, d=64):
        """Options of a call, some of them absent. queries: the shape of a tree."""
        chosen = {"causal": self.random.random() < 0.5, "softcap": self.random.choice([0.0, 5.0])}
        if self.random.random() < 0.5 and d <= 192:
            chosen["chunk"] = self.random.choice([3, 16, 50])
        if self.random.random() < 0.7:
            shape = (batch, heads) if self.random.random() < 0.5 else (heads,)
            chosen["alibi_slopes"] = torch.rand(*shape[:-1], shape[-1] + 3, device=device)[..., :heads] - 0.1
        if self.random.random() < 0.5 and d <= 192:
            chosen["tree"] = torch.randint(0, 2**62, queries, device=device)
        if self.random.random() < 0.3:
            chosen["sinks"] = torch.randn(heads, device=device)
        return chosen

    def of_sequence(self, options, i, rows):
        """Of a batch's options those of one sequence. rows: its words of the tree."""
        own = dict(options)
        if (slopes := own.get("alibi_slopes")) is not None and slopes.dim() == 2:
            own["alibi_slopes"] = slopes[i]
        if own.get("tree") is not None:
            own["tree"] = own["tree"][rows]
        return own

    def assert_near(self, result, expected):
        tolerance = 3e-5 if result.device.type == "cpu" else 4e-2
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)

    def on_both_ways(self, name, call):
        """The results of call(), by libtandem_python, where it is there, and without it: the same bits."""
        native, results, statuses = getattr(_native, name), [], []

        def watched(*arguments):
            statuses.append(native(*arguments))
            return statuses[-1]
        for function in (native and watched, None):
            with unittest.mock.patch.object(_native, name, function):
                results.append(call())
        self.assertEqual(statuses[-1:], [0] if native else [])
        for x, y in zip(*results):
            self.assertTrue(torch.equal(x, y))
        return results[0]


class Forward(OnEveryDevice):
    def test_equals_its_definition_on_drawn_problems(self):
        for device in DEVICES:
            for _ in range(24):
                b, sq, sk = 2, self.random.choice([1, 7, 40, 70]), self.random.choice([1, 40, 90])
                kv_heads, group, d, dv = 2, self.random.choice([1, 3]), *self.random.choices([8, 40, 64, 192, 256], k=2)
                q = self.tensor(device, b, sq, kv_heads * group, d)
                k, v = (self.tensor(device, b, sk, kv_heads, own) for own in (d, dv))
                options = self.draw(device, b, (b, sq), kv_heads * group, max(d, dv))
                with self.subTest(device=device, q=q.shape, k=k.shape, v=v.shape, options=options):
                    name = "forward_varlen" if options.keys() & {"chunk", "alibi_slopes", "tree"} else "forward"
                    out, lse = self.on_both_ways(name, lambda: attention(q, k, v, return_lse=True, **options))
                    for i in range(b):
                        expected = plain(q[i], k[i], v[i], **self.of_sequence(options, i, i))
                        self.assert_near(out[i], expected[0])
                        self.assert_near(lse[i], expected[1])

    def test_packed_sequences_have_trees_and_slopes_of_their_own(self):
        for device in DEVICES:
            starts_q, starts_k = (0, 5, 75, 80), (0, 40, 120, 126)
            q = self.tensor(device, 80, 4, 64)
            k, v = self.tensor(device, 126, 2, 64), self.tensor(device, 126, 2, 128)
            for _ in range(12):
                options = self.draw(device, 3, (80,), 4)
                with self.subTest(device=device, options=options):
                    call = lambda: attention_varlen(q, k, v, cu_seqlens_q=self.numbers(device, *starts_q), return_lse=True,
                                                    cu_seqlens_k=self.numbers(device, *starts_k), **options)
                    out, lse = self.on_both_ways("forward_varlen", call)
                    for i in range(3):
                        rows, keys = slice(*starts_q[i:i + 2]), slice(*starts_k[i:i + 2])
                        expected = plain(q[rows], k[keys], v[keys], **self.of_sequence(options, i, rows))
                        self.assert_near(out[rows], expected[0])
                        self.assert_near(lse[rows], expected[1])

    def test_values_of_another_head_dim_go_every_way(self):
        for device in DEVICES:
            q, k, v = self.tensor(device, 2, 33, 4, 64), self.tensor(device, 2, 40, 2, 64), self.tensor(device, 2, 40, 2, 24)
            out, lse = self.on_both_ways("forward", lambda: attention(q, k, v, causal=True, return_lse=True))
            operator = torch.ops.tandem.forward(q, k, v, -1, 0, 0.0, 0.0, False)
            self.assertTrue(torch.equal(operator[0], out) and torch.equal(operator[1], lse))
            for i in range(2):
                self.assert_near(out[i], plain(q[i], k[i], v[i], causal=True)[0])
            meta = attention(*(x.to("meta") for x in (q, k, v)))
            self.assertEqual((meta.shape, meta.stride()), (out.shape, out.stride()))

    def test_tensors_whose_columns_are_not_contiguous_are_copied(self):
        for device in DEVICES:
            q, k, v = self.tensor(device, 2, 6, 4, 64), self.tensor(device, 2, 9, 2, 64), self.tensor(device, 2, 9, 2, 64)
            turned = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
            for options in ({"chunk": 4}, {"alibi_slopes": torch.rand(4, device=device)},
                            {"tree": torch.ones(2, 6, dtype=torch.int64, device=device)}):
                for call in (attention, lambda *x, **own: attention_varlen(*x, seqused_k=self.numbers(device, 9, 5), **own)):
                    self.assertTrue(torch.equal(call(*turned, **options), call(q, k, v, **options)))
            keys = self.tensor(device, 2, 1, 2, 64)
            with self.assertRaisesRegex(tandem.TandemError, "k.stride"):  # nothing would be appended
                attention_varlen(q, *turned[1:], seqused_k=self.numbers(device, 3, 5), k_new=keys, v_new=keys)

    def test_what_has_no_gradient_says_so(self):
        q, k, v = (self.tensor("cpu", 1, 6, 2, 16).requires_grad_() for _ in "qkv")
        for options in ({"chunk": 4}, {"alibi_slopes": torch.ones(2)}, {"tree": torch.ones(1, 6, dtype=torch.int64)}):
            out = attention(q, k, v, **options)
            with self.assertRaisesRegex(NotImplementedError, "tandem::forward_cache.*chunk, alibi_slopes, tree and split_size have none"):
                out.sum().backward()
        for function in (attention, lambda *x: torch.ops.tandem.forward(*x, -1, -1, 0.0, 0.0, False)[0]):
            with self.assertRaisesRegex(NotImplementedError, "v has another head dim than q: 8 and 16; pad"):
                function(q, k, v[..., :8]).sum().backward()
        learnt = torch.ones(2, requires_grad=True)
        with self.assertRaisesRegex(NotImplementedError, "alibi_slopes"):
            attention(q.detach(), k.detach(), v.detach(), alibi_slopes=learnt).sum().backward()

    def test_arrays_without_elements_are_contiguous(self):
        q, k = self.tensor("cpu", 1, 7, 4, 16), self.tensor("cpu", 1, 9, 2, 16)
        nothing = tandem.BlockList(torch.zeros(1, 1, 4, dtype=torch.int32), torch.zeros(1, 1, 4, 0, dtype=torch.int32), 2, 2)
        self.assertTrue((tandem.forward(q, k, k, block_list=nothing) == 0).all())
        words, slopes = torch.zeros(0, 7, dtype=torch.int64), torch.zeros(0, 4)
        for call in (lambda **own: attention(q[:0], k[:0], k[:0], **own),
                     lambda **own: decode(q[:0], k[:0], k[:0], self.numbers("cpu"), **own)):
            self.assertEqual(call(tree=words, alibi_slopes=slopes).shape, (0, 7, 4, 16))

    def test_mistakes_are_named(self):
        q, k, v = (self.tensor("cpu", 2, 6, 4, 16) for _ in "qkv")
        words = torch.ones(2, 6, dtype=torch.int64)
        for pattern, options in ((r"alibi_slopes has shape \(3,\); \(4,\) is needed", {"alibi_slopes": torch.ones(3)}),
                                 (r"alibi_slopes has shape \(3, 4\)", {"alibi_slopes": torch.ones(3, 4)}),
                                 ("alibi_slopes is float64", {"alibi_slopes": torch.ones(4).double()}),
                                 (r"tree has shape \(6,\)|tree has 1 dimensions", {"tree": words[0]}),
                                 ("tree is int32", {"tree": words.int()}),
                                 ("tree has strides", {"tree": torch.ones(2, 9, dtype=torch.int64)[:, :6]}),
                                 ("chunk is -1", {"chunk": -1})):
            for call in (lambda: attention(q, k, v, **options),
                         lambda: decode(q, k, v, self.numbers("cpu", 6, 2), **options)):
                with self.subTest(pattern), self.assertRaisesRegex(tandem.TandemError, pattern):
                    call()

    def test_autocast_gives_its_dtype(self):
        q, k, v = (torch.randn(1, 6, 2, 16) for _ in "qkv")
        slopes = torch.rand(2)
        with torch.autocast("cpu", torch.bfloat16):
            out = attention(q, k, v, alibi_slopes=slopes)
        self.assertTrue(torch.equal(out, attention(*(x.bfloat16() for x in (q, k, v)), alibi_slopes=slopes)))


class Step(OnEveryDevice):
    def test_equals_its_definition_on_drawn_steps(self):
        for device in DEVICES:
            for number in range(16):
                sq, lengths, paged = self.random.choice([1, 3, 8]), (30, 7, 50), number % 2 == 1
                q, k_new, v_new = (self.tensor(device, 3, sq, heads, 64) for heads in (4, 2, 2))
                caches = [self.tensor(device, *((12, 16) if paged else (3, 64)), 2, 64) for _ in "kv"]
                options = self.draw(device, 3, (3, sq), 4)
                places = {"page_table": torch.randperm(12).to(torch.int32).reshape(3, 4).to(device)} if paged else {}
                own = [x.clone() for x in caches]

                def call():
                    for mine, x in zip(own, caches):
                        mine.copy_(x)
                    return decode(q, *own, self.numbers(device, *lengths), k_new=k_new, v_new=v_new, return_lse=True,
                                  **places, **options)
                with self.subTest(device=device, sq=sq, paged=paged, options=options):
                    out, lse = self.on_both_ways("decode", call)
                    if paged:
                        own = [x[places["page_table"].long()].flatten(1, 2) for x in own]
                    for i, length in enumerate(lengths):
                        self.assertTrue(torch.equal(own[0][i, length:length + sq], k_new[i]))
                        keys = [x[i, :length + sq] for x in own]
                        expected = plain(q[i], *keys, **self.of_sequence(options, i, i))
                        self.assert_near(out[i], expected[0])
                        self.assert_near(lse[i], expected[1])

    def test_values_of_another_head_dim_in_memory_of_their_own_or_in_the_keys(self):
        for device in DEVICES:
            q, k, lengths = self.tensor(device, 2, 3, 4, 64), self.tensor(device, 2, 40, 2, 64), (30, 7)
            first_columns = k[..., :32]
            apart = torch.empty_strided(first_columns.shape, k.stride(), dtype=k.dtype, device=device).copy_(first_columns)
            for v in (first_columns, apart, self.tensor(device, 2, 40, 2, 24)):
                call = lambda: decode(q, k, v, self.numbers(device, *lengths), causal=True, return_lse=True)
                out, lse = self.on_both_ways("decode", call)
                for i, n in enumerate(lengths):
                    expected = plain(q[i], k[i, :n], v[i, :n], causal=True)
                    self.assert_near(out[i], expected[0])
                    self.assert_near(lse[i], expected[1])

    def test_calls_of_one_shape_do_not_share_what_one_of_them_lacks(self):
        for device in DEVICES:
            q, k, v = self.tensor(device, 2, 3, 4, 64), self.tensor(device, 2, 64, 2, 64), self.tensor(device, 2, 64, 2, 64)
            lengths, words = self.numbers(device, 50, 60), torch.ones(2, 3, dtype=torch.int64, device=device)
            all_options = ({}, {"alibi_slopes": torch.rand(4, device=device)}, {"tree": words}, {"chunk": 8},
                           {"alibi_slopes": torch.rand(2, 4, device=device)}, {"chunk": 16})
            call = lambda options: decode(q, k, v, lengths, **options)
            for native in (_native.decode, None):
                with unittest.mock.patch.object(_native, "decode", native):
                    first = [call(options) for options in all_options]
                    for _ in range(2):
                        for options, expected in zip(all_options, first):
                            self.assertTrue(torch.equal(call(options), expected))
            self.assertEqual(len({tuple(out.flatten().tolist()) for out in first}), len(all_options))


class Compile(OnEveryDevice):
    def test_the_operators_pass_opcheck(self):
        ops = torch.ops.tandem
        for device in DEVICES:
            q, k, v = self.tensor(device, 2, 5, 4, 64), self.tensor(device, 2, 16, 2, 64), self.tensor(device, 2, 16, 2, 32)
            slopes, words = torch.rand(2, 4, device=device), torch.ones(2, 5, dtype=torch.int64, device=device)
            lengths = self.numbers(device, 9, 5)
            nothing = (None,) * 8
            calls = ((ops.forward, (q, k, v, -1, 0, 0.0, 0.0, False)),
                     (ops.forward_varlen, (q, k, v, None, None, lengths, None, 0, 0, -1, 0, 0.0, 0.0, False)),
                     (ops.forward_cache, (q, k, v, *nothing, False, 0, 0, 7, -1, 0, 0.0, 0.0, None, slopes, words)),
                     (ops.decode, (q, k, k, lengths, None, None, None, None, False, -1, 0, 0.0, 0.0, 0, None, None, None, 7,
                                   slopes, words)),
                     (ops.decode, (q, k, v, lengths, None, None, None, None, False, -1, 0, 0.0, 0.0, 0)),
                     (ops.decode_append, (q, k.clone(), k.clone(), k[:, :5], k[:, :5], lengths, None, None, None, None, False,
                                          -1, 0, 0.0, 0.0, 0, None, None, None, 7, slopes, words)))
            for op, arguments in calls:
                with self.subTest(device=device, op=str(op)):
                    results = torch.library.opcheck(op.default, arguments)
                    self.assertEqual(set(results.values()), {"SUCCESS"})

    def test_compile_without_a_break(self):
        for device in DEVICES:
            q, k, v = self.tensor(device, 2, 5, 4, 64), self.tensor(device, 2, 16, 2, 64), self.tensor(device, 2, 16, 2, 32)
            slopes, words = torch.rand(2, 4, device=device), torch.ones(2, 5, dtype=torch.int64, device=device)
            lengths = self.numbers(device, 9, 5)
            calls = (lambda q: attention(q, k, v) * 1, lambda q: attention(q, k, v, alibi_slopes=slopes, tree=words, chunk=7) * 1,
                     lambda q: decode(q, k, k, lengths, alibi_slopes=slopes, tree=words, chunk=7) * 1)
            for call in calls:
                compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
                self.assertTrue(torch.equal(compiled(q), call(q)))


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}, devices {', '.join(DEVICES)}")
    unittest.main()
