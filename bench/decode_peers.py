# SPDX-License-Identifier: Apache-2.0
"""Decoding steps of Tandem and its peers behind one signature, and the check that each computes attention."""

import math

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tandem
from decode_cases import BESIDE_EIGHT_BIT, EIGHT_BIT, KERNELS, LATENT
from peers import DTYPES, standard_attention

# Together, the copies of a cache that steps take in turns: several times the 50 MB of an H200's L2, so that a step
# finds nothing of its own there.
ROTATED_BYTES = 512e6
MAX_COPIES = 128
CHECKED_SEQUENCES = 2


def hadamard_matrix(d, seed):
    """H diag(signs) / sqrt(d) as tandem.h says it."""
    signs = []
    for column in range(1, d + 1):  # SplitMix64's outputs
        x = (seed + 0x9e3779b97f4a7c15 * column) % 2**64
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2**64
        x = (x ^ x >> 27) * 0x94d049bb133111eb % 2**64
        signs.append(-1 if (x ^ x >> 31) >> 63 else 1)
    rows = [[signs[j] * (-1) ** (i & j).bit_count() for j in range(d)] for i in range(d)]
    return torch.tensor(rows, dtype=torch.float64) / d ** 0.5


class Inputs:
    """q ~ N(0, 1), and copies of a cache of such keys and values. Rows beyond a length are NaN where there are any."""

    def __init__(self, case, seed):
        self.case = case
        generator = torch.Generator("cuda").manual_seed(seed)
        options = {"device": "cuda", "dtype": DTYPES[case.dtype]}
        self.q = torch.randn((case.b, 1, case.hq, case.d), generator=generator, **options)
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
        self.page_table = None
        shape = (case.b, case.longest, case.hk, case.d)
        if case.page:
            slots = math.ceil(case.longest / case.page)
            self.page_table = torch.randperm(case.b * slots, generator=generator, device="cuda",
                                             dtype=torch.int32).reshape(case.b, slots)
            shape = (case.b * slots, case.page, case.hk, case.d)
        copies = min(max(math.ceil(ROTATED_BYTES / case.read_bytes), 1), MAX_COPIES)
        tensors = "k" if case.latent else "kv"
        self.caches = [[torch.empty(shape, **options).normal_(generator=generator) for _ in tensors]
                       for _ in range(copies)]
        if case.latent:
            self.caches = [[k, k[..., :case.dv]] for (k,) in self.caches]
        self.scales = [None, None]  # of keys and of values
        if case.part in EIGHT_BIT:
            unit = 1 / 32 if case.has_int8 else 1
            to_eight_bits = (lambda x: (x / unit).round().clamp(-127, 127).to(torch.int8)) if case.has_int8 else (
                lambda x: x.to(torch.float8_e4m3fn))
            self.caches = [[to_eight_bits(x) for x in caches] for caches in self.caches]
            own = shape[:3] if case.has_token_scales else (case.b, case.hk)
            self.scales = [(torch.rand(own, generator=generator, device="cuda") + 0.5) * unit for _ in "kv"]
        if case.ragged:
            for cache in (x for caches in self.caches for x in caches):
                for b, length in enumerate(case.lengths):
                    cache[b, length:] = float("nan")

    def sequence(self, b):
        """Keys and values of sequence b in the first copy: length, kv_heads, d."""
        k, v = self.caches[0]
        length = self.case.lengths[b]
        if self.case.part in EIGHT_BIT:
            rows = torch.arange(len(k), device="cuda") if self.page_table is None else self.page_table
            own = rows[b].long().reshape(-1)  # entries or pages
            k, v = (x[own].float().flatten(0, 1) *
                    (scale[own].flatten(0, 1) if scale.ndim == 3 else scale[b])[..., None]
                    for x, scale in zip((k, v), self.scales))
            if self.case.hadamard is not None:
                k = k @ hadamard_matrix(self.case.d, self.case.hadamard).to(k)
            return k[:length], v[:length]
        if self.page_table is None:
            return k[b, :length], v[b, :length]
        pages = self.page_table[b].long()
        return (x[pages].flatten(0, 1)[:length] for x in (k, v))


def _tandem_call(kernel="auto", planned=False):
    def make(inputs):
        out = inputs.q.new_full((*inputs.q.shape[:3], inputs.case.dv), float("nan"))
        workspace = tandem.DecodeWorkspace()
        options = {"page_table": inputs.page_table, "study": {"kernel": kernel}, "k_descale": inputs.scales[0],
                   "v_descale": inputs.scales[1], "hadamard": inputs.case.hadamard, "scale": inputs.case.scale}
        if planned:
            options["plan"] = tandem.decode_plan(inputs.q, *inputs.caches[0], inputs.lengths, **options)
        return lambda k, v: tandem.decode(inputs.q, k, v, inputs.lengths, out=out, workspace=workspace, **options)
    return make


def _sdpa_call(backend, packed=False):
    """packed: the queries that share a key head are passed as so many queries of one head, which is the same."""
    def make(inputs):
        case = inputs.case
        if case.page or case.ragged:
            raise RuntimeError("has no pages and no lengths")
        shape = (case.b, case.hk, case.hq // case.hk, case.d) if packed else (case.b, case.hq, 1, case.d)
        q = inputs.q.reshape(shape)

        def call(k, v):
            with sdpa_kernel(backend):
                out = functional.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2),
                                                              enable_gqa=not packed and case.hq != case.hk,
                                                              scale=case.scale)
            return out.reshape(case.b, 1, case.hq, case.dv)
        return call
    return make


def _fa3_latent(inputs):
    """FlashAttention-3 takes the latent columns as a second part of the queries, and keys and values apart."""
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError as error:
        raise RuntimeError(str(error)) from error
    case = inputs.case
    latent, rope = inputs.q[..., :case.dv], inputs.q[..., case.dv:]
    return lambda k, v: flash_attn_with_kvcache(rope, k[..., case.dv:], v, qv=latent, cache_seqlens=inputs.lengths,
                                                softmax_scale=case.scale)


def _tandem_latent_in_two_parts(inputs):
    """The same by Tandem."""
    case, workspace = inputs.case, tandem.DecodeWorkspace()
    latent, rope = inputs.q[..., :case.dv], inputs.q[..., case.dv:]
    out = inputs.q.new_full((*inputs.q.shape[:3], case.dv), float("nan"))
    return lambda k, v: tandem.decode(rope, k[..., case.dv:], v, inputs.lengths, qv=latent, page_table=inputs.page_table,
                                      scale=case.scale, out=out, workspace=workspace)


# {name: inputs -> call}; a call of (k, v) enqueues one step and returns o, b, 1, hq, d.
GRID_PEERS = {"tandem": _tandem_call(), "cudnn": _sdpa_call(SDPBackend.CUDNN_ATTENTION),
              "cudnn_packed": _sdpa_call(SDPBackend.CUDNN_ATTENTION, packed=True),
              "fa2": _sdpa_call(SDPBackend.FLASH_ATTENTION)}
DECODE_PEERS = {
    "grid": GRID_PEERS,
    "dims": GRID_PEERS,
    "paged": {"tandem": _tandem_call()},
    **{kind: {"tandem": _tandem_call()} for kind in (BESIDE_EIGHT_BIT, *EIGHT_BIT)},
    LATENT: GRID_PEERS | {"fa3": _fa3_latent, "tandem_qv": _tandem_latent_in_two_parts},
    "ragged": {"tandem": _tandem_call(), "tandem_planned": _tandem_call(planned=True)},
    "groups": {f"tandem_{kernel}": _tandem_call(kernel) for kernel in KERNELS} | {"tandem": _tandem_call()},
}


def check_step(inputs, out, seed):
    """"" if out is attention for sampled sequences, within twice the error of a standard implementation in the same
    precision, both against float64. Otherwise what is wrong."""
    if not torch.isfinite(out).all():
        return "the output is not finite everywhere"
    case = inputs.case
    generator = torch.Generator().manual_seed(seed)
    chosen = {0, case.b - 1, *torch.randint(case.b, (CHECKED_SEQUENCES,), generator=generator).tolist()}
    for b in chosen:
        queries = inputs.q[b, 0].reshape(case.hk, case.hq // case.hk, case.d)
        keys, values = (x.transpose(0, 1) for x in inputs.sequence(b))
        visible = torch.ones(1, 1, dtype=torch.bool, device="cuda")
        arguments = queries, keys, values, visible, case.scale
        reference = standard_attention(*arguments, dtype=torch.float64, round_to=torch.float64)
        standard = standard_attention(*arguments, dtype=torch.float32, round_to=inputs.q.dtype)
        allowed = 2 * (standard - reference).abs().max().item() + 1e-5
        error = (out[b, 0].reshape(reference.shape).double() - reference).abs().max().item()
        if not error <= allowed:
            return f"wrong: sequence {b} has error {error:.1e}; allowed {allowed:.1e}"
    return ""


class Replayed:
    """Steps over all copies of the cache in turn, recorded once as a CUDA graph."""

    def __init__(self, call, caches):
        self._call = call  # and all that the graph's kernels point to: outputs, workspace
        self.steps = len(caches) * math.ceil(16 / len(caches))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for step in range(self.steps):
                call(*caches[step % len(caches)])

    def __call__(self):
        self._graph.replay()
