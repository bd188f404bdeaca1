"""Writes a tiny cross-layer transcoder in circuit-tracer's format, and torch's results with it.

Usage: python make_clt.py [OUT]    (needs torch, transformers and safetensors)

The transcoder belongs to the golden model `gpt2`. `reference.safetensors` holds, for one text:

  ids                            the tokens
  acts.<i>, recon.<i>, error.<i> features, reconstructions and errors of the unchanged model
  logits                         its logits
  spliced                        logits with the reconstruction in the place of every MLP output
  spliced_last                   logits with the last MLP output replaced only
  ablated                        logits without feature `ablated_feature` of layer 0 at position 2:
                                 the change of the feature times its decoder rows is added to the
                                 MLP outputs of all layers
  steered                        logits with that feature set to 2 at all positions of the spliced
                                 model
  grad.<i>, grad_in              gradients of logit 7 of the last position with respect to the
                                 features of the spliced model, and to its input embeddings

The Rust tests `saes::cross_layer` compare. Everything is computed in float64.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FEATURES, POSITION, TARGET = 24, 2, 7
HERE = Path(__file__).parent
MODEL = HERE / "../golden/models/gpt2"


class Clt:
    """Weights and arithmetic: features of layer i read the residual stream before the MLP and write
    the MLP outputs of layers i, i + 1, ..."""

    def __init__(self, layers: int, width: int) -> None:
        generator = torch.Generator().manual_seed(5)

        def values(*shape: int, size: float) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator) * size).float()

        self.layers = layers
        self.enc = [values(FEATURES, width, size=width**-0.5) for _ in range(layers)]
        self.b_enc = [values(FEATURES, size=0.2) for _ in range(layers)]
        self.dec = [
            values(FEATURES, layers - i, width, size=0.3) for i in range(layers)
        ]
        self.b_dec = [values(width, size=0.2) for _ in range(layers)]
        self.threshold = [values(FEATURES, size=0.2).abs() for _ in range(layers)]

    def save(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        for i in range(self.layers):
            save_file(
                {
                    f"W_enc_{i}": self.enc[i],
                    f"b_enc_{i}": self.b_enc[i],
                    f"b_dec_{i}": self.b_dec[i],
                    f"threshold_{i}": self.threshold[i],
                },
                out / f"W_enc_{i}.safetensors",
            )
            save_file({f"W_dec_{i}": self.dec[i]}, out / f"W_dec_{i}.safetensors")
        (out / "config.yaml").write_text(
            "model_kind: cross_layer_transcoder\nmodel_name: gpt2\n"
            "feature_input_hook: hook_resid_mid\nfeature_output_hook: hook_mlp_out\n"
        )

    def encode(self, i: int, x: torch.Tensor) -> torch.Tensor:
        pre = x @ self.enc[i].double().T + self.b_enc[i].double()
        return pre * (pre > self.threshold[i].double())

    def decode(self, layer: int, acts: list[torch.Tensor]) -> torch.Tensor:
        total = self.b_dec[layer].double()
        for i in range(layer + 1):
            total = total + acts[i] @ self.dec[i][:, layer - i].double()
        return total


def run(model, clt, ids, spliced=(), edit=None, keep_grad=False):
    """Runs the model; returns its logits and the activations of the transcoder.

    `edit(acts)` changes the features of layer 0. In layers that are not spliced, only the change of
    the reconstruction is added.
    """
    edited, clean, found = [], [], {}

    def read(i):
        def hook(_, inputs):
            acts = clt.encode(i, inputs[0][0])
            if keep_grad:
                acts.retain_grad()
            clean.append(acts)
            edited.append(edit(acts) if edit is not None and i == 0 else acts)

        return hook

    def write(i):
        def hook(_, __, output):
            recon, before = clt.decode(i, edited), clt.decode(i, clean)
            found[f"acts.{i}"], found[f"recon.{i}"] = edited[i], recon
            found[f"error.{i}"] = output[0] - before
            return (recon if i in spliced else output[0] + recon - before)[None]

        return hook

    blocks = model.transformer.h
    hooks = [
        block.ln_2.register_forward_pre_hook(read(i)) for i, block in enumerate(blocks)
    ]
    hooks += [
        block.mlp.register_forward_hook(write(i)) for i, block in enumerate(blocks)
    ]
    embeds = model.transformer.wte(ids)[None].detach().requires_grad_(keep_grad)
    logits = model(inputs_embeds=embeds, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, found, clean, embeds


def main(out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    layers, width = model.config.n_layer, model.config.n_embd
    clt = Clt(layers, width)
    clt.save(out)
    ids = torch.tensor([5, 17, 42, 8, 61, 33, 12, 77])
    every = tuple(range(layers))
    with torch.no_grad():
        logits, found, clean, _ = run(model, clt, ids)
        feature = int(clean[0][POSITION].argmax())

        def ablate(acts):
            acts = acts.clone()
            acts[POSITION, feature] = 0
            return acts

        def steer(acts):
            acts = acts.clone()
            acts[:, feature] = 2
            return acts

        reference = {
            "logits": logits,
            "spliced": run(model, clt, ids, every)[0],
            "spliced_last": run(model, clt, ids, every[-1:])[0],
            "ablated": run(model, clt, ids, (), ablate)[0],
            "steered": run(model, clt, ids, every, steer)[0],
            **found,
        }
    logits, _, acts, embeds = run(model, clt, ids, every, keep_grad=True)
    logits[-1, TARGET].backward()
    reference |= {f"grad.{i}": acts[i].grad for i in every}
    reference["grad_in"] = embeds.grad[0]
    reference = {name: value.float().contiguous() for name, value in reference.items()}
    reference["ids"] = ids
    reference["ablated_feature"] = torch.tensor([feature])
    save_file(reference, out / "reference.safetensors")
    active = [int((a != 0).sum()) for a in acts]
    print(
        f"{layers} layers, {FEATURES} features, active: {active} of {len(ids) * FEATURES}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "clt")
