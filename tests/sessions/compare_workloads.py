"""Compares the four workloads of `pellucid lab sessions --gpt2` with full forward passes in f64.

Usage: pellucid lab sessions --gpt2 --runs 1 --keep DIR
       python compare_workloads.py DIR    (needs torch, transformers, pyarrow)

Every number of the stores in DIR is computed again from the weights with Hugging Face transformers in f64: one full
forward pass for each ablation, one backward pass for each gradient. Logit differences are also computed in f32, to
compare rounding errors. Prints a table and exits with 1 if a bar is missed.
"""

import sys
import tomllib
from pathlib import Path

import pyarrow.dataset
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

NEARLY_ZERO = 1e-3  # latents with a smaller pre-activation may be active or not
TOLERANCE = 5e-5  # of effects and attributions
ERROR_RATIO = 2.0  # of logit differences, to the error of transformers in f32


class Spliced:
    """GPT-2 of one dtype whose `z` can be replaced by the reconstruction of SAEs."""

    def __init__(self, session, dtype):
        path = session["model"]["path"]
        self.model = GPT2LMHeadModel.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
        self.model.requires_grad_(False)
        # Logits of the last position only.
        self.model.lm_head.register_forward_pre_hook(lambda module, inputs: (inputs[0][:, -1:],))
        self.saes, self.pre, self.acts, self.edit = {}, {}, {}, None
        for sae in session["saes"]:
            site = Path(sae["path"]).name
            weights = load_file(Path(sae["path"], "sae_weights.safetensors"))
            self.saes[site] = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.splicing = False
        for site in self.saes:
            block = self.model.transformer.h[int(site.split(".")[1])]
            block.attn.c_proj.register_forward_pre_hook(lambda module, inputs, site=site: self.splice(site, *inputs))

    def splice(self, site, z):
        if not self.splicing:
            return None
        sae = self.saes[site]
        self.pre[site] = z @ sae["W_enc"] + sae["b_enc"]
        acts = torch.relu(self.pre[site])
        if torch.is_grad_enabled():
            acts.retain_grad() if acts.requires_grad else acts.requires_grad_()
        self.acts[site] = acts
        if self.edit and self.edit[0] == site:
            acts = acts.clone()
            acts[0, -1, self.edit[1]] = 0
        return (acts @ sae["W_dec"] + sae["b_dec"],)

    def difference(self, row, splicing=True, edit=None):
        """Logit of the correct label minus that of the other."""
        self.splicing, self.edit = splicing, edit
        logits = self.model(torch.tensor([row["tokens"]])).logits[0, -1, row["label_tokens"]]
        return logits[row["label"]] - logits[1 - row["label"]]


def read(directory, name, table):
    return pyarrow.dataset.dataset(directory / "stores" / name / table).to_table().to_pylist()


def by_key(rows):
    return {(row["example"], row["hook"], row["latent"]): row for row in rows}


def alive(model):
    return {(site, latent) for site, acts in model.acts.items() for latent in acts[0, -1].nonzero().flatten().tolist()}


def unclear(model, site, latent):
    return abs(float(model.pre[site][0, -1, latent])) < NEARLY_ZERO


def main():
    directory = Path(sys.argv[1])
    session = tomllib.loads((directory / "sae.toml").read_text())
    exact, single = Spliced(session, torch.float64), Spliced(session, torch.float32)
    stores = {name: read(directory, name, "examples") for name in ("base", "sae", "attr_grad", "attr_ablation")}
    latents = {name: by_key(read(directory, name, "latents")) for name in ("sae", "attr_grad", "attr_ablation")}
    ours = {name: [] for name in stores}
    hf = {"base": [], "spliced": []}
    wrong_alive, attributions, after, effects, forwards, counts = 0, [], [], [], 0, []
    for index, row in enumerate(stores["base"]):
        with torch.no_grad():
            truth = float(exact.difference(row, splicing=False))
            hf["base"].append(abs(float(single.difference(row, splicing=False)) - truth))
            ours["base"].append(abs(row["logit_diffs"] - truth))
            hf_spliced = float(single.difference(row))
        value = exact.difference(row)
        value.backward()
        truth = float(value.detach())
        hf["spliced"].append(abs(hf_spliced - truth))
        found = alive(exact)
        counts += [sum(site == own for own, _ in found) for site in exact.saes]
        gradients = {site: acts.grad[0, -1] * acts.detach()[0, -1] for site, acts in exact.acts.items()}
        expected = {(index, site, latent) for site, latent in found}
        for name, rows in latents.items():
            ours[name].append(abs(stores[name][index]["logit_diffs"] - truth))
            other = expected.symmetric_difference(key for key in rows if key[0] == index)
            wrong_alive += sum(not unclear(exact, site, latent) for _, site, latent in other)
        for site, latent in found:
            if own := latents["attr_grad"].get((index, site, latent)):
                attributions.append(abs(own["attribution_values"] - float(gradients[site][latent])))
        with torch.no_grad():
            for site, latent in sorted(found):
                own = latents["attr_ablation"].get((index, site, latent))
                if own is None:
                    continue
                forwards += 1
                ablated = float(exact.difference(row, edit=(site, latent)))
                after.append(abs(own["logit_diffs"] - ablated))
                if abs(ablated) > NEARLY_ZERO:
                    effects.append(abs(own["attribution_values"] - (truth - ablated if ablated > 0 else 0.0)))
        print(f"example {index}: {len(row['tokens'])} tokens, difference {truth:+.4f}, {len(found)} latents", file=sys.stderr)
    lines = [("latents alive on one side only, pre-activation 0.001 or more from 0", wrong_alive, 0)]
    for name, errors in ours.items():
        reference = max(hf["base" if name == "base" else "spliced"])
        lines.append((f"{name}: error of logit differences (transformers f32: {reference:.1e})", max(errors), ERROR_RATIO * reference))
    lines.append((f"attr_grad: error of {len(attributions)} attributions", max(attributions), TOLERANCE))
    lines.append((f"attr_ablation: error of {len(effects)} effects", max(effects), TOLERANCE))
    lines.append((f"attr_ablation: error of {forwards} differences after an ablation", max(after), TOLERANCE))
    print(f"tokens {[len(row['tokens']) for row in stores['base']]}, first token {stores['base'][0]['tokens'][0]}, alive latents {counts}\n")
    print("| result | value | bound | |\n|---|---|---|---|")
    for what, value, bound in lines:
        print(f"| {what} | {value:.1e} | {bound:.1e} | {'met' if value <= bound else 'MISSED'} |")
    sys.exit(any(value > bound for _, value, bound in lines))


main()
