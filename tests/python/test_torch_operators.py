# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.tandem.* where no gradients are recorded: they take a short way, and whoever looks on at PyTorch's
dispatcher sees them all the same. And what calls remember of shapes."""

import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from with_torch import DEVICES, SEED, Names  # ends here without PyTorch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tandem
from tandem.torch import _native, _ops, attention, attention_varlen, decode


def forward(q, k, v):
    return torch.ops.tandem.forward(q, k, v, -1, 0, 0.0, 0.0, False)


class OnEveryDevice(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)

    def tensors(self, device, batch=2, sq=24, sk=32):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        return [torch.randn(batch, s, heads, 64, device=device, dtype=dtype)
                for s, heads in ((sq, 4), (sk, 2), (sk, 2))]

    def assert_same(self, results, expected):
        for result, wanted in zip(results, expected):
            self.assertTrue(torch.equal(result, wanted))


class ShortWayTest(OnEveryDevice):
    def passed_by(self, call):
        """Whether call() took the short way at its end, each time that autograd's place was passed."""
        with unittest.mock.patch.object(_ops, "_is_alone", {}) as known:
            call()
            return list(known.values())

    def test_is_taken_where_nobody_looks_on(self):
        for device in DEVICES:
            tensors = self.tensors(device)
            expected = attention(*tensors, causal=True, return_lse=True)
            with torch.no_grad():
                self.assertEqual(self.passed_by(lambda: self.assert_same(forward(*tensors), expected)), [True])
            q, k, v = tensors
            q.requires_grad_()
            self.assertEqual(self.passed_by(lambda: forward(q, k, v)), [])  # nothing to ask: it may be recorded
            self.assertTrue(forward(q, k, v)[0].requires_grad)
            with torch.no_grad():
                self.assertFalse(forward(q, k, v)[0].requires_grad)
            with torch.inference_mode():
                self.assert_same(forward(*tensors), expected)

    @torch.no_grad()
    def test_a_mode_sees_the_operator(self):
        for device in DEVICES:
            tensors = self.tensors(device)
            expected = forward(*tensors)
            with Names() as names:
                self.assertEqual(self.passed_by(lambda: forward(*tensors)), [False])
                self.assert_same(forward(*tensors), expected)
            self.assertEqual(names.seen[:2], 2 * ["tandem.forward.default"])

    @torch.no_grad()
    def test_tensors_of_other_kinds_are_not_taken_for_plain_ones(self):
        q, k, v = self.tensors("cpu")
        with FakeTensorMode() as fake:
            out, lse = forward(*(fake.from_tensor(x) for x in (q, k, v)))
            self.assertEqual((type(out).__name__, out.shape, lse.shape), ("FakeTensor", q.shape, q.shape[:3]))
        out, _ = forward(*(x.to("meta") for x in (q, k, v)))
        self.assertEqual((out.device.type, out.shape), ("meta", q.shape))
        self.assert_same(forward(torch._neg_view(q), k, v), forward(-q, k, v))
        expected = forward(q, k, v)
        self.assert_same(torch.func.functionalize(forward)(q, k, v), expected)
        self.assert_same([x[0] for x in torch.vmap(forward)(q[None], k[None], v[None])], expected)

    @torch.no_grad()
    def test_steps_have_the_same_bits_by_either_library(self):
        for device in DEVICES:
            q, k, v = self.tensors(device, sq=1, sk=64)
            new = self.tensors(device, sq=1, sk=1)[1:]
            lengths = torch.tensor([3, 40], dtype=torch.int32, device=device)
            options = lengths, None, None, None, None, False, -1, 0, 0.0, 0.0, 0
            decode(q, k, v, lengths)  # makes the scratch memory
            results = []
            for native in (_native.decode, None):
                own = [x.clone() for x in (k, v)]
                versions = [x._version for x in own]
                with unittest.mock.patch.object(_native, "decode", native):
                    read = torch.ops.tandem.decode(q, *own, *options)
                    self.assertEqual([x._version for x in own], versions)
                    appended = torch.ops.tandem.decode_append(q, *own, *new, *options)
                self.assertTrue(all(x._version > version for x, version in zip(own, versions)))
                results.append((*read, *appended, *own))
            self.assert_same(*results)


class RowsTest(OnEveryDevice):
    """The log-sum-exp of a call is made like that of the call before, of which no memory is kept."""

    def calls(self, device):
        q, k, v = self.tensors(device)
        packed = [x.flatten(0, 1) for x in (q, k, v)]
        starts = [torch.tensor([0, rows, 2 * rows], dtype=torch.int32, device=device) for rows in (24, 32)]
        lengths = torch.tensor([3, 30], dtype=torch.int32, device=device)
        return (lambda: attention(q, k, v, return_lse=True)[1],
                lambda: attention_varlen(*packed, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], return_lse=True)[1],
                lambda: decode(q[:, :1], k, v, lengths, return_lse=True)[1])

    def test_is_its_own_and_keeps_its_layout(self):
        for device in DEVICES:
            for call in self.calls(device):
                first = call()
                kept = first.clone()
                for _ in range(2):
                    again = call()
                    self.assertNotEqual(again.data_ptr(), first.data_ptr())
                    self.assertEqual((again.stride(), again.dtype), (first.stride(), torch.float32))
                    self.assert_same([again, first], [kept, kept])
        self.assertEqual({like.untyped_storage().nbytes() for like in _native._like_rows.values()} - {0}, set())

    def test_what_was_seen_in_inference_or_under_a_transform_serves_elsewhere(self):
        for device in DEVICES:
            q, k, v = self.tensors(device)
            expected = attention(q, k, v, return_lse=True)

            def of_one(q, k, v):
                return attention(q[None], k[None], v[None], return_lse=True)
            for first in (torch.inference_mode()(lambda: attention(q, k, v, return_lse=True)),
                          lambda: torch.vmap(of_one)(q, k, v),
                          lambda: torch.func.grad(lambda x: x * attention(q, k, v, return_lse=True)[1].sum())(q.sum())):
                _native._like_rows.clear()
                first()
                out, lse = attention(q, k, v, return_lse=True)
                self.assert_same((out, lse), expected)
                self.assertFalse(lse.is_inference())
                (lse * q.new_ones(1, dtype=torch.float32).requires_grad_()).sum().backward()

    def test_few_shapes_are_remembered(self):
        with unittest.mock.patch.object(_native, "MOST_SHAPES", 3), unittest.mock.patch.object(_native, "_like_rows", {}):
            for sq in range(1, 8):
                q, k, v = self.tensors("cpu", sq=sq)
                attention(q, k, v, return_lse=True)
                self.assertLessEqual(len(_native._like_rows), 3)


@unittest.skipIf(_native.decode is None, "needs libtandem_python beside libtandem, and PyTorch 2.10 or newer")
class ArgumentsTest(OnEveryDevice):
    def test_what_few_calls_have_is_given_in_full_or_not_at_all(self):
        q, k, v = self.tensors("cpu", sq=1)
        lengths = torch.tensor([3, 30], dtype=torch.int32)
        step = q, k, v, torch.empty_like(q), None, lengths, None, -1, -1, 0.0, 0.0
        self.assertEqual(_native.decode(*step), 0)
        self.assertEqual(_native.decode(*step, None, None, None), _native.NOT_HERE)
        self.assertEqual(_native.decode(*step[:-1]), _native.NOT_HERE)
        ragged = q, k, v, torch.empty_like(q), None, None, None, lengths, None, 0, 0, -1, -1, 0.0, 0.0
        self.assertEqual(_native.forward_varlen(*ragged), 0)
        self.assertEqual(_native.forward_varlen(*ragged, None), _native.NOT_HERE)
        self.assertEqual(_native.forward_varlen(*ragged[:-1]), _native.NOT_HERE)

    def test_a_library_of_another_version_is_refused(self):
        with unittest.mock.patch.object(_native, "ARGUMENTS", _native.ARGUMENTS + 1):
            with self.assertRaisesRegex(ImportError, "another version"):
                _native._load()

    def test_a_library_is_not_looked_for_in_the_current_folder(self):
        """Where libtandem is found by the system, its name has no folder."""
        library = Path(tandem._library.library_path()).resolve()
        code = ("import ctypes.util; ctypes.util.find_library = lambda name: 'libtandem.so'; "
                "from tandem.torch import _native; print(_native._find())")
        own = {name: x for name, x in os.environ.items() if name not in ("TANDEM_LIBRARY", "TANDEM_PYTHON_LIBRARY")}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "libtandem.so").symlink_to(library)
            Path(folder, "elsewhere").mkdir()
            Path(folder, "elsewhere", _native.NAME).write_text("no library")
            others = os.environ.get("LD_LIBRARY_PATH", "")  # where libtandem's own libraries may be
            folders = os.pathsep.join(filter(None, [folder, others]))
            found = subprocess.run([sys.executable, "-c", code], env=own | {"LD_LIBRARY_PATH": folders},
                                   cwd=Path(folder, "elsewhere"), capture_output=True, text=True)
        self.assertEqual(found.stdout.strip(), str(library.parent / _native.NAME), found.stderr)


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}, {', '.join(DEVICES)}, PyTorch {torch.__version__}")
    unittest.main()
