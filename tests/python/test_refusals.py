# SPDX-License-Identifier: Apache-2.0
"""Calls that are refused: each says which argument is wrong by the name that it has in Python, what it was and what is
allowed. Over NumPy, and over PyTorch where it is installed."""

import copy
import pickle
import re
import sys
import unittest
import unittest.mock

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem

try:
    import torch
    import tandem.torch as tt
    from tandem import flash_attn_interface as flash
except ImportError:
    torch = None

# What only callers of the C interface know.
C_NAMES = re.compile(r"NULL|TANDEM_|\btandem_|->|\b(mask|varlen|scales|cache|prefixes|args)\.|\.data\b|_stride\b|scale_given|"
                     r"_groups\.|\bv_layout|per_token|unexpected keyword|object has no attribute|unpack|object is not")
TOO_LARGE = 2**64 + 2


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def numbers(*values):
    return np.array(values, np.int32)


class Refusals(unittest.TestCase):
    def assert_refused(self, words, call, *arguments, kind=tandem.TandemError, **options):
        """words: a pattern that what the error says begins with."""
        with self.subTest(words, call=getattr(call, "__name__", call)):
            with self.assertRaises(kind) as caught:
                call(*arguments, **options)
            said = re.sub(r"^TANDEM_[A-Z_]+: ", "", str(caught.exception))
            self.assertRegex(said, f"^{words}")
            self.assertNotRegex(said, C_NAMES)

    @staticmethod
    def refuse_numbers(call):
        """Those that all of these calls take. call: makes one with an option, and asserts that it is refused."""
        call("softcap is None; it has to be a number", softcap=None)
        call("softcap is 'x'; it has to be a number", softcap="x")
        call("softcap is -1; it has to be finite and > 0, or 0", softcap=-1)
        call("softcap is 1e-46, which is 0 in float32; it has to be > 0 there, or 0 for none", softcap=1e-46)
        call("softcap is -1e-46, which is 0 in float32", softcap=-1e-46)
        call("scale is 'x'; it has to be a number, or None", scale="x")
        call("scale is inf; .* or None for 1 / sqrt", scale=float("inf"))
        call("scale is 1e-60; it has to be > 0, or None", scale=1e-60)
        call("window is 3; it has to be .left, right.", window=3)
        call("window has 1 parts; it has to be .left, right.", window=(3,))
        call("window is 1.5; it has to be a whole number", window=(1.5, 3))
        call(r"window is \(-3, 1\); its sides have to be 0 or more keys, or None", window=(-3, 1))
        call("chunk is -1; it has to be 0 .no chunks. or", chunk=-1)
        call("chunk is 'x'; it has to be a whole number", chunk="x")

    @staticmethod
    def refuse_keys_without_values(call, new):
        for given, missing in (("k_new", "v_new"), ("v_new", "k_new")):
            call(f"{given} is given, but {missing} is not; append both", **{given: new})

    @staticmethod
    def refuse_starts_without_keys(call, starts):
        call("cu_seqlens_k_new is given, but k_new is not; it says where k_new's", cu_seqlens_k_new=starts)

    @staticmethod
    def refuse_tables(call, angles):
        call("rotary has 1 parts; it has to be .cos, sin.", rotary=(angles,))
        call("rotary has 3 parts; it has to be .cos, sin.", rotary=(angles,) * 3)
        call("rotary is .cos, None.; it has to be .cos, sin.", rotary=(angles, None))
        call("rotary.0..shape.0. is 0; the tables need 1 row", rotary=(angles[:0], angles[:0]))


class OfNumpy(Refusals):
    q, k, lengths = zeros(2, 3, 4, 16), zeros(2, 8, 2, 16), numbers(4, 4)
    rows, starts = zeros(6, 2, 16), numbers(0, 3, 6)

    def forward(self, words, **options):
        self.assert_refused(words, tandem.forward, self.q, self.k, self.k, **options)

    def varlen(self, words, **options):
        own = {"cu_seqlens_q": self.starts, "cu_seqlens_k": self.starts} | options
        self.assert_refused(words, tandem.forward_varlen, self.rows, self.rows, self.rows, **own)

    def over_a_cache(self, words, **options):
        own = {"seqused_k": self.lengths} | options
        self.assert_refused(words, tandem.forward_varlen, self.q, self.k.copy(), self.k.copy(), **own)

    def decode(self, words, **options):
        own = {"lengths": self.lengths} | options
        self.assert_refused(words, tandem.decode, self.q, self.k.copy(), self.k.copy(), **own)

    def test_numbers_are_named(self):
        for call in (self.forward, self.varlen, self.over_a_cache, self.decode):
            self.refuse_numbers(call)
            call(r"backend is \['cpu'\]; allowed are auto", backend=["cpu"])
            call("sinks has 3 numbers; 4 are needed" if call != self.varlen else "sinks has 3 numbers; 2", sinks=zeros(3))
        for call in (self.forward, self.decode):
            call("study.block_m is 'x'; it has to be a whole number", study={"block_m": "x"})
            call("study.block_m is 4294967360; it has to fit in 32 bits", study={"block_m": 2**32 + 64})
            call("study is 3; it has to be a dict of overlap", study=3)
        for words, softcap in (("softcap is None", None), ("softcap is 1e-46, which", 1e-46)):
            for call in (tandem.backward, tandem.backward_varlen):
                self.assert_refused(words, call, *[self.k] * 4, zeros(2, 8, 2), self.k, softcap=softcap)
        self.assert_refused("head_dim is 0; it has to be 1 or more", tandem.score_amplitude, 0)
        self.assert_refused("head_dim is 'x'; it has to be a whole", tandem.score_amplitude, "x")
        self.assert_refused("amplitude is None; it has to be a number", tandem.quantize, self.k, dtype="int8", amplitude=None)
        self.assert_refused("terms is 4294967297; it has to fit in 32", tandem.quantize, self.k, dtype="int8", terms=2**32 + 1)

    def test_numbers_of_another_kind_are_type_errors_too(self):
        for options in ({"softcap": None}, {"window": 3}, {"window": (1.5, 3)}, {"block_list": (1, 2)}):
            with self.assertRaises(TypeError):
                tandem.forward(self.q, self.k, self.k, **options)

    def test_errors_can_be_copied_and_sent_to_another_process(self):
        for options in ({"softcap": -1}, {"softcap": None}):
            with self.assertRaises(tandem.TandemError) as caught:
                tandem.forward(self.q, self.k, self.k, **options)
            error = caught.exception
            error.note = "mine"
            for other in (copy.copy(error), copy.deepcopy(error), *(pickle.loads(pickle.dumps(error, n)) for n in range(6))):
                self.assertEqual((type(other), str(other), other.status, other.note),
                                 (type(error), str(error), "TANDEM_INVALID_ARGUMENT", "mine"))

    def test_numbers_that_64_bits_do_not_hold_are_not_taken_modulo(self):
        for name in ("max_seqlen_q", "max_seqlen_k", "split_size", "chunk"):
            self.varlen(f"{name} is {TOO_LARGE}; it has to fit in 64 bits", **{name: TOO_LARGE})
        self.varlen("max_seqlen_q is -1; it has to be from 0", max_seqlen_q=-1)
        self.varlen("max_seqlen_k is -1; it has to be from 0", max_seqlen_k=-1)

    def test_arrays_are_named(self):
        v = np.array(1, np.float32)
        self.assert_refused("v has 0 dimensions; 4", tandem.forward, self.q, self.k, v)
        self.assert_refused("v has 0 dimensions; 3 or 4", tandem.forward_varlen, self.q, self.k, v)
        self.assert_refused("q has 0 dimensions; 3 or 4", tandem.forward_varlen, v, self.k, self.k)
        for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k"):
            self.varlen(f"{name} has 0 dimensions; 1 are needed", **{name: np.array(3, np.int32)})
        rows = self.q[:, 0, 0]
        self.assert_refused("q has 2 dimensions; 4", tandem.backward, *[rows] * 6, sinks=zeros(2))
        self.assert_refused("v_cache has 0 dimensions; 4", tandem.decode, self.q, self.k, v, self.lengths)
        self.assert_refused("q and v are arrays of different kinds", tandem.forward, self.q, self.k, [1])
        self.assert_refused("q and k_cache are arrays of different", tandem.decode, self.q, [1], self.k, self.lengths)
        self.assert_refused("o_parts and lse_parts are arrays of diff", tandem.merge, self.k[None], [1])
        self.assert_refused("o_parts is float64; allowed are bfloat16, float16, float32$", tandem.merge,
                            self.k[None].astype(float), zeros(1, 2, 8, 2))
        self.forward(r"block_list is \(1, 2\); it has to be a tandem.BlockList", block_list=(1, 2))
        angles = zeros(9, 8)
        for call in (self.over_a_cache, self.decode):
            self.refuse_tables(call, angles)
            call(r"rotary.0. is float64; allowed are bfloat16, float16, float32$", rotary=(angles.astype(float),) * 2)
            call("rotary.dtype is float16; it has to be float32 or q.dtype", rotary=(angles.astype(np.float16),) * 2)

    def test_keys_without_values_are_not_appended(self):
        for call in (self.over_a_cache, self.decode):
            self.refuse_keys_without_values(call, self.k[:, :1])
        self.refuse_starts_without_keys(self.over_a_cache, self.starts)

    def test_options_that_steps_do_not_have_are_named(self):
        self.decode("decode has no argument soft_cap; allowed are k_new, .*, workspace$", soft_cap=1)
        self.assert_refused("decode_plan has no argument workspace; allowed are k_new", tandem.decode_plan, self.q, self.k,
                            self.k, self.lengths, workspace=tandem.DecodeWorkspace())

    def test_a_plan_is_what_decode_plan_makes(self):
        def asks_for(_, size):
            size._obj.value = 300
            return 0
        with unittest.mock.patch.object(tandem._library.library(), "tandem_decode_plan_size", asks_for):
            self.decode("plan has 299 bytes; this call's has 300 or more: make it by decode_plan", plan=zeros(299, dtype=np.uint8))
            self.decode("plan is int32; allowed are uint8", plan=zeros(300, dtype=np.int32))
            self.decode("plan has 2 dimensions; 1 are needed .bytes", plan=zeros(300, 1, dtype=np.uint8))
            self.decode(r"plan has strides \(2,\); the last one has to be 1", plan=zeros(600, dtype=np.uint8)[::2])

    def test_masks_of_arrays_are_not_ignored(self):
        masked = np.ma.array(self.k, mask=self.k == 0)
        words = "has a mask, which Tandem does not see; pass"
        self.assert_refused(f"k {words} k.filled.value.$", tandem.forward, self.q, masked, self.k)
        self.assert_refused(f"q {words}", tandem.decode, np.ma.array(self.q), self.k, self.k, self.lengths)
        self.assert_refused(f"lengths {words}", tandem.decode, self.q, self.k, self.k, np.ma.array(self.lengths))
        self.assert_refused(f"o_parts {words}", tandem.merge, masked[None], zeros(1, 2, 8, 2))

    def test_what_only_8_bits_have_is_named(self):
        self.forward("values_by_column is given, but q is float32; it is for", values_by_column=True)
        self.forward("v_shift is given, but q is float32; it is for", v_shift=zeros(2, 2, 16))
        self.forward("qk_amplitude is given, but q is float32", qk_amplitude=3)
        self.decode("hadamard is given, but k_cache is float32; it is for caches of 8 bits", hadamard=3)

    def test_words_of_the_library_have_names_of_python(self):
        self.assert_refused("out.shape.1. .*q.shape", tandem.forward, self.q, self.k, self.k, out=zeros(2, 4, 4, 16))
        self.over_a_cache("page_table.shape.1. is 0; it has to be 1 slot", page_table=zeros(2, 0, dtype=np.int32))
        self.over_a_cache("seqused_k is None; paged keys need", page_table=zeros(2, 1, dtype=np.int32), seqused_k=None)
        self.over_a_cache("cu_seqlens_k and page_table are both given", page_table=zeros(2, 1, dtype=np.int32),
                          cu_seqlens_k=self.starts)
        for name in ("leftpad_k", "batch_index"):
            self.over_a_cache(f"{name} is given, but keys are paged .page_table.; .*pass None",
                              page_table=zeros(2, 1, dtype=np.int32), **{name: self.lengths})
        self.over_a_cache("seqused_k is None; to append", k_new=self.k[:, :1], v_new=self.k[:, :1], seqused_k=None)
        self.over_a_cache("k_new.shape.0. .batch.", k_new=self.k[:1], v_new=self.k[:1])
        self.over_a_cache("k_new.dtype is float16, but q.dtype is float32", k_new=self.k.astype(np.float16), v_new=self.k)
        self.decode("page_table.shape.1. is 0; it has to be 1 slot", page_table=zeros(2, 0, dtype=np.int32))
        self.decode("k_new.shape.1. .* more than the capacity", k_new=zeros(2, 9, 2, 16), v_new=zeros(2, 9, 2, 16))
        self.decode("the length of prefix_lengths is 3; it has to be 0 to q.shape", cu_prefix_groups=numbers(0, 0, 1, 2),
                    prefix_lengths=numbers(0, 0, 0))
        self.assert_refused("q.shape.1. .* forward takes more$", tandem.decode, zeros(2, 9, 4, 16), self.k, self.k, self.lengths)
        self.assert_refused("k_cache.shape.1. .capacity. is 0", tandem.decode, self.q, self.k[:, :0], self.k[:, :0], self.lengths)
        self.assert_refused("out.dtype is int8, but by_column is True; values are float8",
                            tandem.quantize, self.k, dtype="int8", by_column=True)
        self.assert_refused("terms is 2, but values lie by key; .* by_column=True$", tandem.quantize, self.k, dtype="int8",
                            terms=2)
        self.assert_refused("terms is 3", tandem.quantize, self.k, dtype="int8", terms=3)
        self.assert_refused("rotary is given, but by_column is True", tandem.quantize, self.k, dtype="int8", by_column=True,
                            rotary=(zeros(9, 8),) * 2)
        self.assert_refused("x.shape.3. .head dim. is 24, but hadamard is given", tandem.quantize, zeros(1, 2, 2, 24),
                            dtype="int8", hadamard=0)
        q8 = zeros(2, 3, 4, 16, dtype=np.int8)
        self.assert_refused("v.dtype is int8, but q.dtype is int8; values of 8 bits are float8_e4m3fn", tandem.forward,
                            q8, q8, q8, out=self.q)

    def test_dtypes_are_named(self):
        for wrong in ("foo", np.float16, np.uint8, 3, None, ["int8"]):
            self.assert_refused("dtype is .*; allowed are float8_e4m3fn, int8, by name", tandem.quantize, self.k, dtype=wrong)
        for right in ("int8", np.int8, np.dtype("int8")):
            self.assertEqual(tandem.quantize(self.k, dtype=right)[0].dtype, np.int8)
        parts, lse = self.k[None], zeros(1, 2, 8, 2)
        for wrong in ("foo", float, "int8"):
            self.assert_refused("dtype is .*; allowed are bfloat16, float16, float32, by name", tandem.merge, parts, lse,
                                dtype=wrong)
        for right in ("float16", "f2", np.float16, np.dtype("float16")):
            self.assertEqual(tandem.merge(parts, lse, dtype=right)[0].dtype, np.float16)


@unittest.skipIf(torch is None, "needs PyTorch")
class OfTorch(Refusals):
    def setUp(self):
        self.q, self.k = torch.zeros(2, 3, 4, 16), torch.zeros(2, 8, 2, 16)
        self.lengths, self.starts = (torch.tensor(x, dtype=torch.int32) for x in ((4, 4), (0, 3, 6)))
        self.rows = torch.zeros(6, 2, 16)

    def attention(self, words, **options):
        self.assert_refused(words, tt.attention, self.q, self.k, self.k, **options)

    def varlen(self, words, **options):
        self.assert_refused(words, tt.attention_varlen, self.rows, self.rows, self.rows, cu_seqlens_q=self.starts,
                            cu_seqlens_k=self.starts, **options)

    def over_a_cache(self, words, **options):
        self.assert_refused(words, tt.attention_varlen, self.q, self.k.clone(), self.k.clone(), seqused_k=self.lengths, **options)

    def decode(self, words, **options):
        self.assert_refused(words, tt.decode, self.q, self.k.clone(), self.k.clone(), self.lengths, **options)

    def test_numbers_are_named(self):
        for call in (self.attention, self.varlen, self.over_a_cache, self.decode):
            self.refuse_numbers(call)
        for name in ("max_seqlen_q", "max_seqlen_k", "split_size", "chunk"):
            self.varlen(f"{name} is {TOO_LARGE}; it has to fit in 64 bits", **{name: TOO_LARGE})
        for name in ("split_size", "chunk"):
            self.decode(f"{name} is {TOO_LARGE}; it has to fit in 64 bits", **{name: TOO_LARGE})
        for window in ((None, None), 3, (1.5, 2)):
            self.assert_refused("window_size ", flash.flash_attn_func, self.q, self.k, self.k, window_size=window)
        self.assert_refused("block is 'x'", tt.quantize, self.k, block="x")
        self.assert_refused("amplitude is None", tt.quantize, self.k, amplitude=None)
        q8 = self.q.to(torch.float8_e4m3fn)
        self.assert_refused("softcap is 1e-46, which", tt.attention_eight_bit, q8, q8, q8, softcap=1e-46)
        self.assert_refused("softcap is 1e-46, which", flash.flash_attn_func, self.q, self.k, self.k, softcap=1e-46)
        self.assert_refused("qk_amplitude is 'x'", tt.attention_eight_bit, q8, q8, q8, qk_amplitude="x")
        self.assert_refused("dtype is torch.int8; allowed are bfloat16", tt.attention_eight_bit, q8, q8, q8, dtype=torch.int8)

    def test_keys_without_values_are_not_appended(self):
        for call in (self.over_a_cache, self.decode):
            self.refuse_keys_without_values(call, self.k[:, :1])
        self.refuse_starts_without_keys(self.over_a_cache, self.starts)
        for given, missing in ("kv", "vk"):
            for heads in (4, 2):
                self.assert_refused(f"{given} is given, but {missing} is not; append both", flash.flash_attn_with_kvcache,
                                    self.q[:, :1, :heads], self.k, self.k, cache_seqlens=self.lengths, **{given: self.k[:, :1]})
        self.assert_refused("rotary_sin is given, but rotary_cos is not", flash.flash_attn_with_kvcache, self.q, self.k,
                            self.k, cache_seqlens=self.lengths, rotary_sin=torch.zeros(9, 8))
        nothing = (None,) * 4 + (False, -1, -1, 0.0, 0.0, 0)
        for k_new, v_new in ((None, self.k[:, :1]), (self.k[:, :1], None)):
            self.assert_refused("[kv]_new is given", torch.ops.tandem.decode_append, self.q, self.k, self.k, k_new, v_new,
                                self.lengths, *nothing)

    def test_arrays_are_named(self):
        v = torch.tensor(1.0)
        self.assert_refused("v has 0 dimensions", tt.attention, self.q, self.k, v)
        self.assert_refused("v has 0 dimensions", tt.attention_varlen, self.q, self.k, v)
        self.assert_refused("v_cache has 0 dimensions", tt.decode, self.q, self.k, v, self.lengths)
        self.assert_refused("k_cache is float64; allowed are .*int8$", tt.decode, self.q, self.k.double(), self.k, self.lengths)
        self.assert_refused("q is float64; allowed are bfloat16, float16, float32$", tt.decode, self.q.double(), self.k, self.k,
                            self.lengths)
        angles = torch.zeros(9, 8)
        for call in (self.over_a_cache, self.decode):
            self.refuse_tables(call, angles)
            call("rotary.*is torch.float64|rotary.0. is float64", rotary=(angles.double(),) * 2)

    def test_a_step_has_a_length_for_each_sequence(self):
        longer = torch.cat([self.lengths, self.lengths])
        for words, decode in (("lengths has 4 elements", tandem.decode),
                              ("lengths has shape .4,.; 2 numbers are needed$", tt.decode)):
            self.assert_refused(words, decode, self.q, self.k, self.k, longer)
        self.decode("batch_index has shape .4,.; 2 numbers", batch_index=longer)

    def test_what_only_8_bits_have_is_named(self):
        self.decode("hadamard is given, but k_cache is float32; it is for", hadamard=3)
        self.decode("k_descale is given, but k_cache is float32", k_descale=torch.ones(1, 1))
        self.assert_refused("values_by_column is given, but q is float32", tt.attention_eight_bit, self.q, self.k, self.k,
                            values_by_column=True)

    def test_scales_of_each_token_are_of_keys_and_values(self):
        cache = self.k.to(torch.float8_e4m3fn)
        self.assert_refused("v_descale is None; with scales of each token both keys and values have", tt.decode, self.q.half(),
                            cache, cache, self.lengths, k_descale=torch.ones(2, 8, 2))

    def test_8_bits_say_what_they_do_not_have(self):
        q8 = torch.zeros(2, 3, 4, 16).to(torch.float8_e4m3fn)
        for words, options in (("sinks are given, .*pass None", {"sinks": torch.zeros(4)}), ("chunk is not 0", {"chunk": 4}),
                               ("alibi_slopes are given", {"alibi_slopes": torch.zeros(4)}),
                               ("tree is given", {"tree": torch.zeros(2, 3, dtype=torch.int64)})):
            self.assert_refused(words, tandem.forward, q8, q8, q8, **options)
        self.assert_refused("lengths of sequences are given", tandem.forward_varlen, q8, q8, q8, seqused_k=self.lengths,
                            out=torch.zeros(2, 3, 4, 16, dtype=torch.bfloat16))
        self.assert_refused("v.shape.1. is 3; values by column", tandem.forward, q8, q8, q8, values_by_column=True)
        self.assert_refused("q_descale.shape.2.", tandem.forward, q8, q8, q8, q_descale=torch.ones(1, 3))
        self.assert_refused("q_descale is float16; allowed are float32$", tandem.forward, q8, q8, q8,
                            q_descale=torch.ones(1, 1).half())

    def test_dtypes_are_those_that_are_asked_for_or_refused(self):
        for quantize in (tandem.quantize, tt.quantize):
            for wrong in ("foo", torch.uint8, torch.float16, "float16", 3, np.int8):
                self.assert_refused("dtype is .*; allowed are float8_e4m3fn, int8, by name", quantize, self.k, dtype=wrong)
            for right in ("int8", torch.int8, "float8_e4m3fn", torch.float8_e4m3fn):
                dtype = getattr(torch, right) if isinstance(right, str) else right
                self.assertEqual(quantize(self.k, dtype=right)[0].dtype, dtype)
        parts, lse = self.k[None], torch.zeros(1, 2, 8, 2)
        for merge in (tandem.merge, tt.merge):
            for wrong in ("foo", torch.float64, "int8"):
                self.assert_refused("dtype is .*; allowed are bfloat16, float16, float32, by name", merge, parts, lse,
                                    dtype=wrong)
            for right in ("float16", torch.float16):
                self.assertEqual(merge(parts, lse, dtype=right)[0].dtype, torch.float16)
        compiled = torch.compile(lambda x: tt.quantize(x, dtype="int8", block=8)[0], fullgraph=True, backend="aot_eager")
        self.assertEqual(compiled(self.k).dtype, torch.int8)


if __name__ == "__main__":
    unittest.main()
