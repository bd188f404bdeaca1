"""Compares `pellucid sae eval` with the evaluation functions of SAELens, on the same tokens.

Usage: python compare_evals.py PELLUCID CORPUS    (needs sae-lens, transformer-lens < 4, transformers)

PELLUCID is the command, CORPUS a text file. The built-in model runs in TransformerLens with the weights of its
Hugging Face directory; the SAE is the built-in one. Prints a table and exits with 1 if a number differs by more than
1e-4 of its size.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from sae_lens import SAE
from sae_lens.evals import get_downstream_reconstruction_metrics, get_sparsity_and_variance_metrics
from sae_lens.training.activation_scaler import ActivationScaler
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_llama_weights
from transformers import AutoTokenizer, LlamaForCausalLM

BUILTIN = Path(__file__).resolve().parents[2] / "crates/models/builtin"
LENGTH, TEXTS = 64, 24


class FixedTokens:
    """Gives the same batch of tokens to every call, in the place of an activation store."""

    def __init__(self, tokens):
        self.tokens = tokens

    def get_batch_tokens(self, _count):
        return self.tokens


def hooked_model():
    """The built-in model in TransformerLens, in f32 and without processed weights."""
    hf = LlamaForCausalLM.from_pretrained(BUILTIN, dtype=torch.float32)
    c = hf.config
    cfg = HookedTransformerConfig(
        n_layers=c.num_hidden_layers, d_model=c.hidden_size, n_ctx=c.max_position_embeddings, d_head=c.head_dim,
        n_heads=c.num_attention_heads, n_key_value_heads=c.num_key_value_heads, d_mlp=c.intermediate_size,
        act_fn="silu", d_vocab=c.vocab_size, normalization_type="RMS", positional_embedding_type="rotary",
        rotary_dim=c.head_dim, rotary_base=10000, rotary_adjacent_pairs=False, gated_mlp=True, final_rms=True,
        eps=c.rms_norm_eps, original_architecture="LlamaForCausalLM", default_prepend_bos=False,
    )  # fmt: skip
    model = HookedTransformer(cfg)
    model.load_state_dict(convert_llama_weights(hf, cfg), strict=False)
    return model


@torch.no_grad()
def saelens(tokens):
    sae, model = SAE.load_from_disk(str(BUILTIN / "sae"), dtype="float32"), hooked_model()
    # Loading from a directory drops the metadata.
    sae.cfg.metadata.hook_name = "blocks.3.hook_resid_post"
    common = dict(sae=sae, model=model, activation_store=FixedTokens(tokens), activation_scaler=ActivationScaler())
    shape = dict(n_batches=1, eval_batch_size_prompts=len(tokens), model_kwargs={})
    metrics, features = get_sparsity_and_variance_metrics(
        **common, **shape, compute_l2_norms=True, compute_sparsity_metrics=True, compute_variance_metrics=True,
        compute_featurewise_density_statistics=True,
    )  # fmt: skip
    losses = get_downstream_reconstruction_metrics(**common, **shape, compute_kl=True, compute_ce_loss=True)
    density = torch.tensor(features["feature_density"])
    return metrics | losses | {"dead": int((density == 0).sum()), "density": density}


def main():
    pellucid, corpus = sys.argv[1], Path(sys.argv[2]).read_text()
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    texts = [corpus[start : start + 600] for start in range(0, 600 * TEXTS, 600)]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    kept = [(text, row[:LENGTH]) for text, row in zip(texts, rows, strict=True) if len(row) >= LENGTH]
    tokens = torch.tensor([row for _, row in kept])
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(text) + "\n" for text, _ in kept)
        file.flush()
        command = [pellucid, "sae", "eval", "--corpus", file.name, "--context", str(LENGTH), "--json"]
        ours = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    theirs, losses = saelens(tokens), ours["losses"]
    pairs = {
        "l0": (ours["l0"], theirs["l0"]),
        "l1": (ours["l1"], theirs["l1"]),
        "explained_variance": (ours["explained_variance"], theirs["explained_variance"]),
        "mse": (ours["mse"], theirs["mse"]),
        "cossim": (ours["cosine"], theirs["cossim"]),
        "l2_norm_in": (ours["l2_norm_in"], theirs["l2_norm_in"]),
        "l2_norm_out": (ours["l2_norm_out"], theirs["l2_norm_out"]),
        "l2_ratio": (ours["l2_ratio"], theirs["l2_ratio"]),
        "ce_loss_without_sae": (losses["ce_plain"], theirs["ce_loss_without_sae"]),
        "ce_loss_with_sae": (losses["ce_spliced"], theirs["ce_loss_with_sae"]),
        "ce_loss_with_ablation": (losses["ce_zero_ablated"], theirs["ce_loss_with_ablation"]),
        "ce_loss_score": (losses["ce_recovered"], theirs["ce_loss_score"]),
        "kl_div_with_sae": (losses["kl_spliced"], theirs["kl_div_with_sae"]),
        "kl_div_with_ablation": (losses["kl_zero_ablated"], theirs["kl_div_with_ablation"]),
        "kl_div_score": (losses["kl_recovered"], theirs["kl_div_score"]),
        "dead features": (ours["dead"], theirs["dead"]),
    }
    print(f"{len(tokens)} texts of {LENGTH} tokens\n\n{'metric':24}{'Pellucid':>14}{'SAELens':>14}{'difference':>12}")
    wrong = 0
    for name, (a, b) in pairs.items():
        difference = abs(a - b) / max(abs(b), 1e-6)
        wrong += difference > 1e-4
        print(f"{name:24}{a:14.6f}{b:14.6f}{difference:12.1e}")
    print(f"\n{wrong} of {len(pairs)} differ by more than 1e-4" if wrong else "\nall agree to 1e-4")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
