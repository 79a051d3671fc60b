# SPDX-License-Identifier: Apache-2.0
"""A mutant of the list: what it changes, and whose tests show it."""

import dataclasses

from mutation import located
from mutation.located import Before, Edit, Remove, Swap

FOLDERS = {"src/quantize/": "quantize", "src/backward/": "backward", "src/tile/handover.h": "backward",
           "src/tile/hadamard.h": "quantize", "src/decode/": "decode",
           "src/core/stream_k.h": "decode"}
VARLEN = ("append: ", "chunks: ", "listed: ", "producer: ", "slopes: ", "tree: ")  # what only kernels for variable lengths know, by names of mutants


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    kind: str
    where: str
    change: Before | Edit | Remove | Swap
    head_dim: int = 64  # whose kernels show it

    @property
    def file(self):
        """Where the place is, from the root of the repository; raises located.Stale if it is no more."""
        return located.At(self.where).find()[0]

    @property
    def kernel(self):
        """Whose tests show it: the forward kernels' where several include the file."""
        if self.file.endswith(".cpp"):  # plans: kernels are headers
            return "plans"
        if self.name.startswith(("mixed: ", "prefix: ")):
            return self.name.partition(":")[0]
        if self.name.startswith(("narrow: ", "packed: ", "plan: ", "queue: ", "share: ")):
            return "mixed"
        if self.name.startswith(VARLEN):
            return "varlen"
        if self.name.startswith(("decode, ", "backward, ")):  # what only these show of src/tile and src/hw
            return self.name.partition(",")[0]
        return next((kernel for folder, kernel in FOLDERS.items() if self.file.startswith(folder)), "forward")

    def text(self):
        """The file's text, changed."""
        return located.change(self.where, self.change)[1]
