# SPDX-License-Identifier: Apache-2.0
"""tandem.torch over caches: steps over 8 bits, and the forward that appends, turns and attends in one call; on the CPU, and
on a Hopper GPU where there is one. What the calls mean is said by tandem.decode and tandem.forward_varlen, with whose
bits they are compared."""

import unittest
import unittest.mock

from with_torch import DEVICES, SEED  # ends here without PyTorch

import torch

import tandem
from tandem.torch import _native, attention_varlen, decode

LENGTHS = (30, 7, 0)


class OnEveryDevice(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        torch._dynamo.reset()

    def numbers(self, device, *values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    def check_two_ways(self, name, call, expected, written):
        """call() has the bits that `expected` has, by libtandem_python and without, and says what it wrote. written:
        makes fresh copies of what a call writes to."""
        results = [expected(*(own := written())) + tuple(own)]
        for native in (getattr(_native, name), None):
            own = written()
            versions = [x._version for x in own]
            with unittest.mock.patch.object(_native, name, native):
                results.append(call(*own) + tuple(own))
            changed = [not torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(own, written())]
            for x, version, is_changed in zip(own, versions, changed):
                self.assertTrue(x._version > version or not is_changed)
        for result in results[1:]:
            for x, y in zip(result, results[0]):
                self.assertTrue(torch.equal(x.view(torch.uint8), y.view(torch.uint8)))


class LatentStep(OnEveryDevice):
    """Values are the keys' first columns, in the same memory."""
    COLUMNS, SCALE = 512, 192 ** -0.5

    def step(self, device, sq=2):
        q, k_new = (torch.randn(len(LENGTHS), sq, heads, 576, dtype=torch.bfloat16, device=device) for heads in (16, 1))
        cache = torch.randn(len(LENGTHS), 40, 1, 576, dtype=torch.bfloat16, device=device)
        return q, cache, self.numbers(device, *LENGTHS), k_new

    def call(self, function, q, cache, lengths, k_new):
        return function(q, cache, cache[..., :self.COLUMNS], lengths, k_new=k_new, v_new=k_new[..., :self.COLUMNS],
                        causal=True, scale=self.SCALE, return_lse=True)

    def test_has_the_bits_of_the_plain_call(self):
        for device in DEVICES:
            q, cache, lengths, k_new = self.step(device)
            with self.subTest(device=device):
                self.check_two_ways("decode", lambda own: self.call(decode, q, own, lengths, k_new),
                                    lambda own: self.call(tandem.decode, q, own, lengths, k_new), lambda: [cache.clone()])

    def test_has_the_values_columns_and_compiles(self):
        for device in DEVICES:
            q, cache, lengths, k_new = self.step(device)
            expected_cache = cache.clone()
            expected = self.call(decode, q, expected_cache, lengths, k_new)
            self.assertEqual(expected[0].shape, (*q.shape[:3], self.COLUMNS))
            compiled = torch.compile(lambda *x: self.call(decode, *x), fullgraph=True, backend="aot_eager")
            for x, y in zip((*compiled(q, cache, lengths, k_new), cache), (*expected, expected_cache)):
                self.assertTrue(torch.equal(x, y))


class SharedPrefixes(OnEveryDevice):
    """Sequences in groups, whose page tables begin with the same pages."""
    GROUPS, PAGES, PAGE, OWN = (3, 1, 2), (8, 4, 16), 16, 2

    def step(self, device):
        """q, the pages of keys and of values, and what else a step with groups is given."""
        first_own = sum(self.PAGES)
        tables, lengths, taken = [], [], 0
        for group, pages in zip(self.GROUPS, self.PAGES):
            for _ in range(group):
                own = [first_own + self.OWN * len(tables) + i for i in range(self.OWN)]
                tables.append(([*range(taken, taken + pages), *own] + [0] * max(self.PAGES))[:max(self.PAGES) + self.OWN])
                lengths.append(pages * self.PAGE + 3 + 5 * len(tables))
            taken += pages
        q = torch.randn(len(tables), 1, 8, 64, dtype=torch.bfloat16, device=device)
        pages = [torch.randn(first_own + self.OWN * len(tables), self.PAGE, 2, 64, dtype=torch.bfloat16, device=device) for _ in "kv"]
        boundaries = [sum(self.GROUPS[:i]) for i in range(len(self.GROUPS) + 1)]
        return q, pages, self.numbers(device, *lengths), {
            "page_table": torch.tensor(tables, dtype=torch.int32, device=device),
            "cu_prefix_groups": self.numbers(device, *boundaries),
            "prefix_lengths": self.numbers(device, *(pages * self.PAGE for pages in self.PAGES))}

    def test_have_the_bits_of_the_plain_call_and_the_results_of_sequences_alone(self):
        for device in DEVICES:
            q, pages, lengths, options = self.step(device)
            with self.subTest(device=device):
                self.check_two_ways("decode", lambda *own: decode(q, *own, lengths, return_lse=True, **options),
                                    lambda *own: tandem.decode(q, *own, lengths, return_lse=True, **options),
                                    lambda: [x.clone() for x in pages])
                alone = decode(q, *pages, lengths, return_lse=True, page_table=options["page_table"])
                for x, y in zip(decode(q, *pages, lengths, return_lse=True, **options), alone):
                    torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-2)

    def test_may_change_from_step_to_step(self):
        for device in DEVICES:
            q, pages, lengths, options = self.step(device)
            for change in (1, 2):
                tokens = lengths - change
                out = decode(q, *pages, tokens, **options | {"prefix_lengths": options["prefix_lengths"] - 16 * change})
                alone = decode(q, *pages, tokens, page_table=options["page_table"])
                torch.testing.assert_close(out, alone, rtol=1e-2, atol=1e-2)

    def test_compile(self):
        for device in DEVICES:
            q, pages, lengths, options = self.step(device)
            compiled = torch.compile(lambda q: decode(q, *pages, lengths, **options) * 1, fullgraph=True, backend="aot_eager")
            self.assertTrue(torch.equal(compiled(q), decode(q, *pages, lengths, **options)))

    def test_say_what_is_wrong(self):
        q, pages, lengths, options = self.step("cpu")
        cu, prefixes = options.pop("cu_prefix_groups"), options.pop("prefix_lengths")
        for given, words in (({"prefix_lengths": prefixes}, "belong together"), ({"cu_prefix_groups": cu}, "belong together"),
                             ({"cu_prefix_groups": cu[1:], "prefix_lengths": prefixes}, "one more than there are groups"),
                             ({"cu_prefix_groups": cu, "prefix_lengths": prefixes.long()}, "prefix_lengths is int64")):
            with self.assertRaisesRegex(tandem.TandemError, words):
                decode(q, *pages, lengths, **options, **given)


class WorkspaceOfSeveralKinds(OnEveryDevice):
    def test_is_made_anew_for_arrays_of_another_kind_or_place(self):
        workspace, kinds = tandem.DecodeWorkspace(), []
        for device in (*DEVICES, "numpy", *DEVICES, "numpy"):
            place = "cpu" if device == "numpy" else device
            dtype = torch.float32 if place == "cpu" else torch.bfloat16
            q, cache = (torch.randn(2, n, 2, 64, dtype=dtype, device=place) for n in (1, 300))
            arrays = q, cache, cache, self.numbers(place, 300, 7)
            expected = tandem.decode(*arrays)
            if device == "numpy":
                arrays = [x.numpy() for x in arrays]
            out = tandem.decode(*arrays, workspace=workspace)
            torch.testing.assert_close(torch.as_tensor(out), expected, rtol=0, atol=0)
            kinds.append(type(workspace._memory))
        self.assertGreater(len(set(kinds)), 1)


class EightBitStep(OnEveryDevice):
    def step(self, device, per_token, sq=2):
        b, heads, d, capacity = len(LENGTHS), 2, 64, 40
        q = torch.randn(b, sq, 4, d, dtype=torch.bfloat16, device=device)
        new = [torch.randn(b, sq, heads, d, dtype=torch.bfloat16, device=device) for _ in "kv"]
        caches = [torch.randn(b, capacity, heads, d, device=device).to(torch.float8_e4m3fn) for _ in "kv"]
        shape = (b, capacity, heads) if per_token else (b, heads)
        return q, caches, self.numbers(device, *LENGTHS), new, [torch.rand(shape, device=device) + 0.5 for _ in "kv"]

    def test_has_the_bits_of_the_plain_call(self):
        for device in DEVICES:
            for per_token in (False, True):
                q, caches, lengths, (k_new, v_new), descales = self.step(device, per_token)

                def call(function):
                    return lambda k, v, k_scale, v_scale: function(q, k, v, lengths, k_new=k_new, v_new=v_new, causal=True,
                                                                   k_descale=k_scale, v_descale=v_scale, return_lse=True)
                with self.subTest(device=device, per_token=per_token):
                    self.check_two_ways("decode", call(decode), call(tandem.decode),
                                        lambda: [x.clone() for x in (*caches, *descales)])

    def test_without_scales_elements_are_what_their_bits_say(self):
        for device in DEVICES:
            q, (k, v), lengths, _, _ = self.step(device, False)
            ones = torch.ones(1, 1, device=device)
            self.assertTrue(torch.equal(decode(q, k, v, lengths), decode(q, k, v, lengths, k_descale=ones, v_descale=ones)))
            self.assertTrue(torch.equal(decode(q, k, v, lengths, k_descale=2 * ones),
                                        decode(2 * q, k, v, lengths, v_descale=ones)))

    def test_the_operators_pass_opcheck_and_compile(self):
        for device in DEVICES:
            q, caches, lengths, new, descales = self.step(device, True)
            options = None, None, None, None, False, -1, 0, 0.0, 0.0, 0, None
            calls = ((torch.ops.tandem.decode, (q, *caches, lengths, *options, *descales)),
                     (torch.ops.tandem.decode_append, (q, *caches, *new, lengths, *options, *descales)))
            for op, arguments in calls:
                own = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
                tests = "test_autograd_registration", "test_faketensor"  # others compare tensors, which PyTorch does not here
                results = torch.library.opcheck(op.default, own, test_utils=tests)
                self.assertEqual(set(results.values()), {"SUCCESS"})
            step = lambda q, k, v, a, b: decode(q, k, v, lengths, k_descale=a, v_descale=b, causal=True) * 1
            compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
            self.assertTrue(torch.equal(compiled(q, *caches, *descales), step(q, *caches, *descales)))

    def test_scales_that_do_not_fit_are_refused_by_name(self):
        q, (k, v), lengths, _, (scale, _) = self.step("cpu", False)
        for pattern, options in (("k_descale has 1 dimensions", {"k_descale": scale[:, 0]}),
                                 ("v_descale has 2 dimensions, is float16", {"v_descale": scale.half()}),
                                 ("different numbers of dim", {"k_descale": scale, "v_descale": torch.ones(3, 40, 2)}),
                                 (r"k_descale.shape\[2\]", {"k_descale": torch.ones(3, 7)})):
            with self.assertRaisesRegex(tandem.TandemError, pattern):
                decode(q, k, v, lengths, **options)
        with self.assertRaisesRegex(tandem.TandemError, "k_descale is given, but k_cache is bfloat16"):
            decode(q, k.bfloat16(), v.bfloat16(), lengths, k_descale=scale)


class ForwardOverACache(OnEveryDevice):
    def cache(self, device, paged):
        """q, packed; the cache; options of a call over it."""
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        rows, heads, d = (11, 4, 1), 2, 64
        shape = (12, 16, heads, d) if paged else (5, 64, heads, d)
        caches = [torch.randn(shape, dtype=dtype, device=device) for _ in "kv"]
        starts = self.numbers(device, 0, 11, 15, 16)
        q = torch.randn(sum(rows), 4, d, dtype=dtype, device=device)
        options = {"cu_seqlens_q": starts, "seqused_k": self.numbers(device, *LENGTHS), "max_seqlen_q": 11,
                   "causal": True, "return_lse": True}
        if paged:
            options["page_table"] = torch.randperm(12).to(torch.int32).reshape(3, 4).to(device)
        else:
            options |= {"batch_index": self.numbers(device, 4, 0, 2), "leftpad_k": self.numbers(device, 5, 0, 0)}
        return q, caches, options

    def new(self, q, caches, starts):
        device, shape = q.device, (16, 2, 64)
        angles = torch.rand(2, 80, 16, device=device)
        return {"k_new": torch.randn(shape, dtype=q.dtype, device=device), "cu_seqlens_k_new": starts,
                "v_new": torch.randn(shape, dtype=q.dtype, device=device), "rotary": tuple(angles),
                "rotary_interleaved": True}

    def test_has_the_bits_of_the_plain_call(self):
        for device in DEVICES:
            for paged in (False, True):
                for appends in (False, True):
                    for chunk in (0, 9):
                        q, caches, options = self.cache(device, paged)
                        options |= self.new(q, caches, options["cu_seqlens_q"]) if appends else {}
                        options |= {"chunk": chunk, "sinks": torch.randn(4, device=device) if chunk else None,
                                    "split_size": 0 if chunk else 64}
                        with self.subTest(device=device, paged=paged, appends=appends, chunk=chunk):
                            self.check_two_ways("forward_varlen", lambda k, v: attention_varlen(q, k, v, **options),
                                                lambda k, v: tandem.forward_varlen(q, k, v, **options),
                                                lambda: [x.clone() for x in caches])

    def test_a_split_size_reaches_the_library_and_has_no_gradient(self):
        for device in DEVICES:
            q, (k, v), options = self.cache(device, True)
            for own in (q, q.clone().requires_grad_()):
                with self.assertRaisesRegex(Exception, "split_size is 100"):
                    attention_varlen(own, k, v, **options, split_size=100)
            out, _ = attention_varlen(q.clone().requires_grad_(), k, v, **options, split_size=64)
            with self.assertRaisesRegex(NotImplementedError, "split_size have none"):
                out.sum().backward()

    def test_one_call_is_a_step_for_each_sequence(self):
        q, (k, v), options = self.cache("cpu", False)
        starts, lengths, index = options["cu_seqlens_q"], options["seqused_k"], options["batch_index"]
        options |= self.new(q, (k, v), starts) | {"leftpad_k": None}
        before = k.clone(), v.clone()
        out, _ = attention_varlen(q, k, v, **options)
        for i in range(1, 3):
            own = slice(starts[i], starts[i + 1])
            alone = decode(q[None, own], *before, lengths[i:i + 1], k_new=options["k_new"][None, own],
                           v_new=options["v_new"][None, own], batch_index=index[i:i + 1], causal=True,
                           rotary=options["rotary"], rotary_interleaved=True)
            torch.testing.assert_close(out[own], alone[0], rtol=0, atol=2e-5)
        self.assertTrue(torch.equal(before[0][index[1:].long()], k[index[1:].long()]))

    def test_the_operators_pass_opcheck_and_compile(self):
        for device in DEVICES:
            for paged in (False, True):
                q, caches, options = self.cache(device, paged)
                new = self.new(q, caches, options["cu_seqlens_q"])
                own = (options["cu_seqlens_q"], None, options["seqused_k"], options.get("page_table"),
                       options.get("leftpad_k"), options.get("batch_index"), *new["rotary"], True, 11, 0, 0, -1, 0, 0.0, 0.0)
                appended = new["k_new"], new["v_new"], new["cu_seqlens_k_new"]
                for op, arguments in ((torch.ops.tandem.forward_cache, (q, *caches, *own)),
                                      (torch.ops.tandem.forward_append, (q, *caches, *appended, *own))):
                    results = torch.library.opcheck(op.default, arguments, test_utils=(
                        "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))
                    self.assertEqual(set(results.values()), {"SUCCESS"})
                call = lambda q, k, v: attention_varlen(q, k, v, **options, **new)[0] * 1
                compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
                one, other = ([x.clone() for x in caches] for _ in "ab")
                self.assertTrue(torch.equal(compiled(q, *one), call(q, *other)))
                self.assertTrue(torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]))

    def test_say_that_they_have_no_gradient_and_name_what_does_not_fit(self):
        q, (k, v), options = self.cache("cpu", False)
        out, _ = attention_varlen(q.requires_grad_(), k, v, **options)
        with self.assertRaisesRegex(NotImplementedError, "tandem::forward_cache"):
            out.sum().backward()
        q.requires_grad_(False)
        with self.assertRaisesRegex(tandem.TandemError, "leftpad_k has 2 numbers; 3 are needed"):
            attention_varlen(q, k, v, **options | {"leftpad_k": self.numbers("cpu", 1, 2)})


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}, devices {', '.join(DEVICES)}")
    unittest.main()
