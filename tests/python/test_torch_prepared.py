# SPDX-License-Identifier: Apache-2.0
"""tandem.torch's calls by ctypes, whose arguments stay prepared from call to call: what a first call refuses is refused
behind a right call of almost the same arguments too."""

import ctypes
import unittest
import unittest.mock

from with_torch import DEVICES, SEED  # ends here without PyTorch

import torch

import tandem
from tandem.torch import _call, _native, attention, decode


class Prepared(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        _call._prepared.clear()

    def assert_refused_cold_and_warm(self, right, wrong):
        """right: makes a call that is served; wrong: pairs of a pattern and a call that says it."""
        for is_warm in (False, True):
            for pattern, call in wrong:
                _call._prepared.clear()
                if is_warm:
                    right()
                with self.subTest(pattern, is_warm=is_warm), self.assertRaisesRegex(tandem.TandemError, pattern):
                    call()

    def test_a_step_looks_at_both_tables(self):
        for device in DEVICES:
            dtype = torch.float32 if device == "cpu" else torch.bfloat16
            q, new = (torch.randn(2, 1, 2, 64, dtype=dtype, device=device) for _ in "qk")
            cache, lengths = torch.randn(2, 64, 2, 64, dtype=dtype, device=device), torch.tensor([5, 7], dtype=torch.int32, device=device)
            cos, sin = torch.rand(2, 64, 32, device=device)
            turned = lambda x: x.t().contiguous().t()

            def call(cos, sin):
                return decode(q, cache.clone(), cache.clone(), lengths, k_new=new, v_new=new, rotary=(cos, sin))
            wrong = [lambda: call(turned(cos), turned(sin)), lambda: call(cos, turned(sin)), lambda: call(cos, sin[:1]),
                     lambda: call(cos, sin[:, :16]), lambda: call(cos, sin.half())]
            with unittest.mock.patch.object(_native, "decode", None):
                self.assert_refused_cold_and_warm(lambda: call(cos, sin), [("cosines and sines have to be of one shape", x) for x in wrong])

    def test_calls_of_a_device_keep_the_interpreter_s_lock(self):
        """Steps of one stream share scratch memory: two threads must not enqueue their kernels among one another."""
        for backend, keeps in (("hopper", True), ("cpu", False)):
            call, _ = _call._functions("decode", tandem._library.BACKENDS[backend])
            self.assertEqual(bool(call._flags_ & ctypes._FUNCFLAG_PYTHONAPI), keeps)
            self.assertNotEqual(call(None, None, 0, None), 0)
            with self.assertRaisesRegex(tandem.TandemError, "args is None"):
                tandem._library.check(call(None, None, 0, None))

    def test_gradients_look_at_the_log_sum_exp_and_its_gradient(self):
        for device in DEVICES:
            dtype = torch.float32 if device == "cpu" else torch.bfloat16
            q, k, v, dout = (torch.randn(1, 32, 2, 64, dtype=dtype, device=device) for _ in "qkvo")
            out, lse = attention(q, k, v, return_lse=True)
            lse, dlse = lse.contiguous(), torch.randn(1, 32, 2, device=device)
            call = lambda lse, dlse: torch.ops.tandem.backward(dout, dlse, q, k, v, out, lse, -1, -1, 0.0, 0.0, False)
            wrong = []
            for name, own in (("lse", lambda x: call(x, dlse)), ("dlse", lambda x: call(lse, x))):
                right = lse if name == "lse" else dlse
                wrong += [(f"{name} is int32 on .*; it has to be float32 on ", lambda own=own, x=right.int(): own(x)),
                          (f"{name} is float16 on .*; it has to be float32 on ", lambda own=own, x=right.half(): own(x)),
                          (f"{name} has 2 dimensions", lambda own=own, x=right[0]: own(x)),
                          (rf"{name}.shape.1. ", lambda own=own, x=right[:, :1]: own(x))]
            with unittest.mock.patch.object(_native, "backward", None):
                self.assert_refused_cold_and_warm(lambda: call(lse, dlse), wrong)


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}, devices {', '.join(DEVICES)}")
    unittest.main()
