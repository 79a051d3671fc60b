# SPDX-License-Identifier: Apache-2.0
"""Attention in NumPy, in float64."""

import numpy as np


def visible(sq, sk, left, right, chunk=0):
    """sq x sk: which keys each query sees. None: no limit. chunk: only keys in the chunk of its own position."""
    distance = np.arange(sk)[None, :] - (np.arange(sq)[:, None] + sk - sq)
    own = np.ones((sq, sk), bool)
    if chunk:
        own = (np.arange(sq)[:, None] + sk - sq) // chunk == np.arange(sk)[None, :] // chunk
    return own & (distance >= (-sk - sq if left is None else -left)) & (distance <= (sk + sq if right is None else right))


def shown(words, sk):
    """sq x sk: the keys that a tree lets each of its queries see, if it is one."""
    sq = len(words)
    bits = np.ones((sq, sk), bool)
    for i, word in enumerate(words):
        for j in range(max(0, sk - sq), sk):
            bits[i, j] = sq > 64 or word == 0 or int(word) >> (j - sk + sq) & 1
    return bits


def attention64(q, k, v, scale, mask, **options):
    """o and lse in float64. options: softcap, sinks, and slopes of heads."""
    softcap, sinks, slopes = (options.pop(*pair) for pair in (("softcap", 0.0), ("sinks", None), ("slopes", None)))
    assert not options
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = scale * np.einsum("bihd,bjhd->bihj", q, k)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if slopes is not None:
        distance = np.abs(np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - np.arange(k.shape[1]))
        scores = scores - slopes.astype(np.float64)[:, None] * distance[None, :, None, :]
    scores = np.where(mask[None, :, None, :], scores, -np.inf)
    top = scores.max(axis=-1, initial=-np.inf, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks.astype(np.float64)[:, None])
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64) - np.where(np.isfinite(top), top, 0.0)[..., 0])
    with np.errstate(divide="ignore"):
        lse = np.log(total) + np.where(np.isfinite(top), top, 0.0)[..., 0]
    return np.einsum("bihj,bjhd->bihd", weights, v) / np.where(total == 0, 1, total)[..., None], lse


def gradients64(inputs, gradients, scale, mask, softcap=0.0, sinks=None):
    """dq, dk, dv in float64 for inputs (q, k, v) and gradients (dout, dlse), of which dlse may be None; with sinks also
    theirs."""
    (q, k, v, dout), dlse = (x.astype(np.float64) for x in (*inputs, gradients[0])), gradients[1]
    group = q.shape[2] // k.shape[2]
    kv_shape = k.shape
    o, lse = attention64(q, k, v, scale, mask, softcap=softcap, sinks=sinks)
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = scale * np.einsum("bihd,bjhd->bihj", q, k)
    slope = 1.0
    if softcap:
        slope = 1 - np.tanh(scores / softcap) ** 2
        scores = softcap * np.tanh(scores / softcap)
    seen = mask[None, :, None, :] & np.isfinite(lse)[..., None]
    p = np.where(seen, np.exp(np.where(seen, scores - lse[..., None], -np.inf)), 0)
    delta = (dout * o).sum(axis=-1) - (0 if dlse is None else dlse)
    dx = slope * p * (np.einsum("bihd,bjhd->bihj", dout, v) - delta[..., None])

    def summed(x):
        return x.reshape(*kv_shape[:3], group, x.shape[-1]).sum(axis=3)

    results = (scale * np.einsum("bihj,bjhd->bihd", dx, k), summed(scale * np.einsum("bihj,bihd->bjhd", dx, q)),
               summed(np.einsum("bihj,bihd->bjhd", p, dout)))
    return results if sinks is None else (*results, -(np.exp(sinks.astype(np.float64) - lse) * delta).sum(axis=(0, 1)))


def rotated(x, positions, cos, sin, interleaved):
    """s, h, d rows rotated by their positions, as complex numbers; columns beyond the tables stay."""
    half = cos.shape[1]
    first, second = ((slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else
                     (slice(0, half), slice(half, 2 * half)))
    x = x.astype(np.float64)
    angles = (cos.astype(np.float64) + 1j * sin)[np.clip(positions, 0, len(cos) - 1)][:, None, :]
    product = (x[..., first] + 1j * x[..., second]) * angles
    x[..., first], x[..., second] = product.real, product.imag
    return x


def merged64(o_parts, lse_parts):
    """o and lse over all keys in float64; parts of lse -inf count for nothing, whatever their o."""
    lse_parts = lse_parts.astype(np.float64)
    lse = np.logaddexp.reduce(lse_parts, axis=0, initial=-np.inf)
    weights = np.exp(lse_parts - np.where(np.isneginf(lse), 0, lse))[..., None]
    return np.where(weights == 0, 0, weights * o_parts.astype(np.float64)).sum(axis=0), lse


def hadamard_matrix(d, seed):
    """H diag(signs) / sqrt(d) by the words of tandem.h."""
    signs = []
    for column in range(1, d + 1):  # SplitMix64's outputs
        x = (seed + 0x9e3779b97f4a7c15 * column) % 2**64
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2**64
        x = (x ^ x >> 27) * 0x94d049bb133111eb % 2**64
        signs.append(-1 if (x ^ x >> 31) >> 63 else 1)
    return np.array([[signs[j] * (-1) ** bin(i & j).count("1") for j in range(d)] for i in range(d)]) / d ** 0.5
