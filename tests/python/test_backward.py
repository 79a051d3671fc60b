# SPDX-License-Identifier: Apache-2.0
"""tandem.backward against float64 gradients in NumPy, on the CPU backends."""

import os
import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the tests of the Python binding need NumPy (Debian: python3-numpy)")
    sys.exit(77)

import tandem
from oracle import attention64, gradients64, visible

SEED = int(os.environ.get("TANDEM_SEED", np.random.SeedSequence().entropy % 2**32))
OUTPUTS = ("dq", "dk", "dv", "dsinks")


class BackwardTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def normal(self, *shape, dtype=np.float32):
        return self.rng.standard_normal(shape).astype(dtype)

    def check(self, q, k, v, mask, with_dlse=False, **options):
        forward = {name: value for name, value in options.items() if name != "deterministic"}
        out, lse = tandem.forward(q, k, v, return_lse=True, **forward)
        dout, dlse = self.normal(*q.shape, dtype=q.dtype), self.normal(*q.shape[:3]) if with_dlse else None
        expected = gradients64((q, k, v), (dout, dlse), options.get("scale", q.shape[-1] ** -0.5), mask,
                               options.get("softcap", 0.0), options.get("sinks"))
        results = tandem.backward(q, k, v, out, lse, dout, dlse=dlse, **options)
        tolerance = {"float32": 1e-4, "float16": 5e-2}[q.dtype.name]
        self.assertEqual(len(results), len(expected))
        for name, like, result, reference in zip(OUTPUTS, (q, k, v, options.get("sinks")), results, expected):
            self.assertEqual((result.shape, result.dtype), (like.shape, like.dtype), name)
            np.testing.assert_allclose(result.astype(np.float64), reference, rtol=tolerance, atol=tolerance,
                                       err_msg=f"{name}, seed {SEED}")

    def test_equals_float64_gradients_on_random_shapes(self):
        for _ in range(20):
            b, kv_heads, group = self.rng.integers(1, 4, 3)
            sq, sk = self.rng.integers(1, 90, 2)
            d = 8 * self.rng.integers(1, 17)
            dtype = self.rng.choice([np.float32, np.float16])
            q = self.normal(b, sq, kv_heads * group, d, dtype=dtype)
            k, v = (self.normal(b, sk, kv_heads, d, dtype=dtype) for _ in "kv")
            backend = str(self.rng.choice(["auto", "cpu", "reference"]))
            with self.subTest(q=q.shape, k=k.shape, dtype=dtype.__name__, backend=backend):
                self.check(q, k, v, visible(sq, sk, None, None), with_dlse=bool(b % 2), backend=backend)

    def test_masks_scale_softcap_and_determinism_reach_the_library(self):
        q, k, v = self.normal(2, 70, 4, 32), self.normal(2, 60, 2, 32), self.normal(2, 60, 2, 32)
        self.check(q, k, v, visible(70, 60, None, 0), causal=True)
        self.check(q, k, v, visible(70, 60, 20, 7), window=(20, 7))
        self.check(q, k, v, visible(70, 60, None, None), scale=0.3)
        self.check(q, k, v, visible(70, 60, None, None), softcap=2.0, with_dlse=True)
        self.check(q, k, v, visible(70, 60, None, None), deterministic=True)

    def test_sinks_have_gradients(self):
        q, k, v = self.normal(2, 70, 4, 32), self.normal(2, 60, 2, 32), self.normal(2, 60, 2, 32)
        for backend in ("cpu", "reference"):
            for with_dlse in (False, True):
                self.check(q, k, v, visible(70, 60, None, 0), with_dlse, causal=True, sinks=self.normal(4), backend=backend)
        out, lse = tandem.forward(q, k, v, return_lse=True, sinks=np.zeros(4, np.float32))
        for pattern, options in (("sinks has 3 numbers; 4 are needed", {"sinks": np.zeros(3, np.float32)}),
                                 ("sinks is float64", {"sinks": np.zeros(4)}),
                                 ("dsinks has 5 numbers", {"sinks": np.zeros(4, np.float32), "dsinks": np.zeros(5, np.float32)}),
                                 ("dsinks is given, but sinks is None", {"dsinks": np.zeros(4, np.float32)})):
            with self.assertRaisesRegex(tandem.TandemError, pattern):
                tandem.backward(q, k, v, out, lse, out, **options)

    def test_takes_any_strides_and_writes_where_it_is_told(self):
        packed, room = self.normal(2, 3, 40, 3, 16), np.full((2, 3, 40, 3, 16), np.nan, np.float32)
        q, k, v = (packed[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
        out, lse = tandem.forward(q, k, v, return_lse=True)
        dout = np.broadcast_to(np.float32(1), q.shape[:3] + (1,)).repeat(16, axis=-1)
        into = {name: room[:, :, :, i].transpose(0, 2, 1, 3) for i, name in enumerate(OUTPUTS[:3])}
        results = tandem.backward(q, k, v, out, lse, dout, **into)
        for name, result, expected in zip(OUTPUTS, results,
                                          gradients64((q, k, v), (dout, None), 0.25, visible(40, 40, None, None))):
            self.assertIs(result, into[name])
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)

    def test_parts_of_the_keys_with_out_and_lse_of_all_add_up(self):
        q, k, v = self.normal(1, 30, 2, 8), self.normal(1, 50, 2, 8), self.normal(1, 50, 2, 8)
        out, lse = tandem.forward(q, k, v, return_lse=True)
        dout = self.normal(*q.shape)
        whole = tandem.backward(q, k, v, out, lse, dout)
        parts = [tandem.backward(q, k[:, keys], v[:, keys], out, lse, dout) for keys in (slice(20), slice(20, None))]
        np.testing.assert_allclose(parts[0][0] + parts[1][0], whole[0], atol=1e-5)
        for i in (1, 2):
            np.testing.assert_allclose(np.concatenate([part[i] for part in parts], axis=1), whole[i], atol=1e-5)

    def test_rows_and_keys_that_nobody_sees_are_zero(self):
        q, k, v = self.normal(1, 9, 2, 8), self.normal(1, 4, 2, 8), self.normal(1, 4, 2, 8)
        out, lse = tandem.forward(q, k, v, causal=True, return_lse=True)
        dq, _, _ = tandem.backward(q, k, v, out, lse, self.normal(*q.shape), causal=True)
        self.assertTrue((dq[:, :5] == 0).all() and (dq[:, 6:] != 0).any())
        out, lse = tandem.forward(q[:, :2], k, v, window=(0, 0), return_lse=True)
        _, dk, dv = tandem.backward(q[:, :2], k, v, out, lse, self.normal(1, 2, 2, 8), window=(0, 0))
        self.assertTrue((dk[:, :2] == 0).all() and (dv[:, :2] == 0).all() and (dv[:, 2:] != 0).all())

    def assert_refused(self, pattern, *tensors, status="TANDEM_INVALID_ARGUMENT", **options):
        with self.assertRaisesRegex(tandem.TandemError, pattern) as caught:
            tandem.backward(*tensors, **options)
        self.assertEqual(caught.exception.status, status)

    def test_refuses_what_contradicts_itself(self):
        q, k, v, out, dout = (self.normal(1, 5, 2, 8) for _ in range(5))
        lse = self.normal(1, 5, 2)
        tensors = (q, k, v, out, lse, dout)
        self.assert_refused("causal and window", *tensors, causal=True, window=(1, 0))
        self.assert_refused("lse has 4 dimensions; 3", q, k, v, out, lse[..., None], dout)
        self.assert_refused("dlse is float64", *tensors, dlse=lse.astype(np.float64))
        self.assert_refused(r"dout.shape\[1\]", q, k, v, out, lse, dout[:, :3])
        self.assert_refused("dk's address is 0x.* overlap those of k", *tensors, dk=k)
        self.assert_refused("backend is 'gpu'", *tensors, backend="gpu")
        frozen = np.zeros_like(q)
        frozen.flags.writeable = False
        self.assert_refused("dq is read-only", *tensors, dq=frozen)


if __name__ == "__main__":
    unittest.main()
