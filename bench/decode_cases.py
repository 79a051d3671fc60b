# SPDX-License-Identifier: Apache-2.0
"""Which decoding steps are measured, in which order, and the columns of a result."""

from dataclasses import dataclass, replace

from cases import RESULTS

DECODE_RESULTS = RESULTS / "decode.csv"

# sk: tokens of the longest sequence; lengths: "" where all have that many, else for example 1x16384+15x64. page: tokens
# of a page, 0: contiguous. us, us_min: median and least microseconds of one step. rate: GB/s of the keys and values,
# each read once. clock_mhz, power_w: medians over the whole case, in which all its peers took turns.
DECODE_COLUMNS = ["kind", "dtype", "d", "b", "hq", "hk", "sq", "sk", "page", "lengths", "kernel", "peer", "us",
                  "us_min", "rate", "note", "commit", "clock_mhz", "power_w"]

BATCHES, CACHES, HEADS = (1, 8, 32, 64, 128), (1024, 2048, 8192, 32768, 131072), (8, 32, 64, 128)
KV_HEADS, HEAD_DIM = 8, 128
KERNELS = ("plain", "shared_p", "register_p")
GROUPS = (1, 4, 8, 16)
GROUP_SHAPES = ((1, 8192), (64, 8192), (1, 1024), (128, 1024), (8, 32768), (1, 131072))
PAGE_SIZES = (64, 16)
PAGED_SHAPES = ((64, 8192), (1, 8192), (8, 32768), (128, 1024), (1, 131072))
OTHER_DIMS, DIM_HEADS = (64, 256), (32, 128)
DIM_SHAPES = ((1, 8192), (64, 8192), (1, 1024), (128, 1024), (8, 2048), (128, 2048))
# Caches of 8 bits with a scale for each sequence and head, or each token and head, and those with keys times a Hadamard
# matrix; the same steps of 16 bits.
EIGHT_BIT, BESIDE_EIGHT_BIT = ("fp8", "fp8_tokens", "int8", "int8_tokens", "int8_hadamard"), "fp8_beside"
HADAMARD_SEED = 7
EIGHT_BIT_SHAPES = ((64, 8192, 32), (1, 8192, 32), (8, 8192, 32), (1, 131072, 32), (64, 8192, 128), (1, 8192, 128),
                    (128, 1024, 32), (8, 32768, 64))
# Latent attention: values are the keys' first columns. DeepSeek's, with its 128 heads on one card, or on 2, 4, 8.
LATENT, LATENT_DIM, LATENT_VALUE_DIM, LATENT_SCALE = "latent", 576, 512, 192 ** -0.5
LATENT_SHAPES = ((64, 8192), (1, 8192), (128, 1024), (8, 32768), (1, 131072))
LATENT_HEADS = (16, 128, 32, 64)
RAGGED = (((1, 16384), (15, 64)), ((32, 128), (32, 4096)), ((1, 131072), (31, 4096)), ((64, 512),))


@dataclass(frozen=True)
class DecodeCase:
    part: str  # one of PARTS
    dtype: str  # bf16 or fp16
    lengths: tuple  # of each sequence
    hq: int
    page: int = 0
    d: int = HEAD_DIM
    hk: int = KV_HEADS

    @property
    def b(self):
        return len(self.lengths)

    @property
    def longest(self):
        return max(self.lengths)

    @property
    def latent(self):
        return self.part == LATENT

    @property
    def has_int8(self):
        return self.part.startswith("int8")

    @property
    def has_token_scales(self):
        return self.part in ("fp8_tokens", "int8_tokens", "int8_hadamard")

    @property
    def hadamard(self):
        """The seed of the matrix that keys are kept times, or None."""
        return HADAMARD_SEED if self.part == "int8_hadamard" else None

    @property
    def dv(self):
        return LATENT_VALUE_DIM if self.latent else self.d

    @property
    def scale(self):
        return LATENT_SCALE if self.latent else self.d ** -0.5

    @property
    def row_bytes(self):
        """Of the keys and values of one token."""
        return (1 if self.latent else 2) * self.hk * self.d * (1 if self.part in EIGHT_BIT else 2)

    @property
    def read_bytes(self):
        return sum(self.lengths) * self.row_bytes

    @property
    def allocated_bytes(self):
        return self.b * self.longest * self.row_bytes

    @property
    def ragged(self):
        return len(set(self.lengths)) > 1

    def described_lengths(self):
        """"" or for example "1x16384+15x64"."""
        if not self.ragged:
            return ""
        return "+".join(f"{self.lengths.count(n)}x{n}" for n in sorted(set(self.lengths), reverse=True))

    def gigabytes(self, milliseconds):
        """Per second."""
        return self.read_bytes / milliseconds * 1e-6

    def columns(self):
        return {"kind": self.part, "dtype": self.dtype, "d": self.d, "b": self.b, "hq": self.hq, "hk": self.hk, "sq": 1,
                "sk": self.longest, "page": self.page, "lengths": self.described_lengths()}

    def __str__(self):
        pages = f" pages of {self.page}" if self.page else ""
        lengths = self.described_lengths() or self.longest
        return f"{self.part} {self.dtype} d{self.d} b{self.b} h{self.hq}/{self.hk} {lengths}{pages}"


def even(part, dtype, b, cache, hq, page=0):
    return DecodeCase(part, dtype, (cache,) * b, hq, page)


# What tells most about a decoding kernel, in this order: latency, bandwidth, both, and the widest groups.
TELLING = ((1, 8192, 32), (64, 8192, 32), (1, 1024, 32), (128, 1024, 32), (8, 32768, 64), (1, 131072, 32),
           (1, 8192, 128), (8, 8192, 32), (128, 8192, 128), (32, 2048, 64), (1, 8192, 8), (8, 1024, 32),
           (128, 32768, 32))


def grid(dtype):
    """Every cell; the telling ones first, the others so that any beginning is spread over the grid."""
    cells = [(b, cache, hq) for b in BATCHES for cache in CACHES for hq in HEADS]
    others = [cell for cell in cells if cell not in TELLING]
    stride = 37  # shares no factor with their number
    spread = [others[i * stride % len(others)] for i in range(len(others))]
    return [even("grid", dtype, *cell) for cell in (*TELLING, *spread)]


def dims(dtype):
    """The head dims beside the grid's."""
    return [replace(even("dims", dtype, b, cache, hq), d=d)
            for b, cache in DIM_SHAPES for d in OTHER_DIMS for hq in DIM_HEADS]


def paged(dtype):
    """Each shape contiguous and in pages."""
    return [even("paged", dtype, b, cache, 32, page) for b, cache in PAGED_SHAPES for page in (0, *PAGE_SIZES)]


def ragged(dtype):
    """Each batch, and the same tokens spread evenly."""
    cases = []
    for groups in RAGGED:
        lengths = tuple(length for count, length in groups for _ in range(count))
        case = DecodeCase("ragged", dtype, lengths, 32)
        cases += [case, replace(case, lengths=(sum(lengths) // len(lengths),) * len(lengths))]
    return list(dict.fromkeys(cases))


def groups(dtype):
    return [even("groups", dtype, b, cache, group * KV_HEADS) for b, cache in GROUP_SHAPES for group in GROUPS]


def beside_eight_bit(kind):
    """The steps that are taken over caches of 16 bits and of 8: the same of each kind."""
    def make(dtype):
        return ([even(kind, dtype, *shape) for shape in EIGHT_BIT_SHAPES]
                + [replace(even(kind, dtype, b, 8192, 32), d=d) for d in OTHER_DIMS for b in (64, 1)]
                + [even(kind, dtype, 64, 8192, 32, page) for page in PAGE_SIZES])
    return make


def latent(dtype):
    return [DecodeCase(LATENT, dtype, (cache,) * b, hq, d=LATENT_DIM, hk=1)
            for hq in LATENT_HEADS for b, cache in LATENT_SHAPES]


PARTS = {"grid": grid, "dims": dims, "paged": paged, "ragged": ragged, "groups": groups,
         LATENT: latent, **{kind: beside_eight_bit(kind) for kind in (BESIDE_EIGHT_BIT, *EIGHT_BIT)}}


def chosen(parts, dtypes):
    """The cases of these parts, shuffled together so that any beginning has its share of each; later dtypes last."""
    cases = []
    for dtype in dtypes:
        lists = [PARTS[name](dtype) for name in parts]
        ranked = [(i / len(part), case) for part in lists for i, case in enumerate(part)]
        cases += [case for _, case in sorted(ranked, key=lambda pair: pair[0])]
    return cases
