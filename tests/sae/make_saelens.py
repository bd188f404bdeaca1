"""Writes tiny autoencoders of every kind with SAELens, and its results for fixed inputs.

Usage: python make_saelens.py [OUT]    (needs sae-lens 6.54 and its dependencies)

Each directory of golden/ has the two files of SAELens and reference.json with `input`, `acts`
(encode) and `output` (decode of these, with the skip path of skip transcoders). The Rust test
`sae::tests::golden` reads the files and compares.
"""

import json
import sys
from pathlib import Path

import torch
from sae_lens import (
    BatchTopKTrainingSAE,
    BatchTopKTrainingSAEConfig,
    GatedSAE,
    GatedSAEConfig,
    JumpReLUSAE,
    JumpReLUSAEConfig,
    MatryoshkaBatchTopKTrainingSAE,
    MatryoshkaBatchTopKTrainingSAEConfig,
    StandardSAE,
    StandardSAEConfig,
    TopKSAE,
    TopKSAEConfig,
)
from sae_lens.saes.abstopk_sae import AbsTopKSAE, AbsTopKSAEConfig
from sae_lens.saes.sae import SAE, SAEMetadata
from sae_lens.saes.transcoder import (
    JumpReLUSkipTranscoder,
    JumpReLUSkipTranscoderConfig,
    JumpReLUTranscoder,
    JumpReLUTranscoderConfig,
    SkipTranscoder,
    SkipTranscoderConfig,
    Transcoder,
    TranscoderConfig,
)

D_IN, D_SAE, D_OUT, TOKENS = 6, 20, 7, 5


def metadata(transcoder: bool) -> SAEMetadata:
    hooks = {"hook_name": "blocks.3.hook_resid_post"}
    if transcoder:
        hooks = {
            "hook_name": "blocks.3.mlp.hook_in",
            "hook_name_out": "blocks.3.hook_mlp_out",
        }
    return SAEMetadata(model_name="gpt2-small", prepend_bos=True, **hooks)


def fill(sae: torch.nn.Module, seed: int) -> None:
    """Sets every parameter away from its default; thresholds are positive."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(sae.named_parameters()):
            values = torch.randn(parameter.shape, generator=generator) * 0.5
            parameter.copy_(values.abs() * 0.4 if "threshold" in name else values)


def save(out: Path, name: str, sae: SAE, tokens: torch.Tensor) -> None:
    directory = out / name
    (
        sae.save_inference_model
        if hasattr(sae, "save_inference_model")
        else sae.save_model
    )(directory)
    loaded = SAE.load_from_disk(directory)
    with torch.no_grad():
        acts = loaded.encode(tokens)
        # `decode` leaves out the skip path.
        skips = "skip" in loaded.cfg.architecture()
        output = loaded(tokens) if skips else loaded.decode(acts)
    reference = {
        "input": tokens.tolist(),
        "acts": acts.tolist(),
        "output": output.tolist(),
    }
    (directory / "reference.json").write_text(json.dumps(reference) + "\n")


def main(out: Path) -> None:
    tokens = (
        torch.randn((TOKENS, D_IN), generator=torch.Generator().manual_seed(7)) * 1.5
    )

    # SAELens writes to the metadata, so each autoencoder has its own.
    def plain() -> dict:
        return {"d_in": D_IN, "d_sae": D_SAE, "metadata": metadata(False)}

    def across() -> dict:
        sizes = {"d_in": D_IN, "d_sae": D_SAE, "d_out": D_OUT}
        return {**sizes, "apply_b_dec_to_input": False, "metadata": metadata(True)}

    saes = {
        "standard": StandardSAE(StandardSAEConfig(**plain())),
        "standard_no_b_dec": StandardSAE(
            StandardSAEConfig(**plain(), apply_b_dec_to_input=False)
        ),
        "standard_layer_norm": StandardSAE(
            StandardSAEConfig(**plain(), normalize_activations="layer_norm")
        ),
        "standard_unit_norm": StandardSAE(
            StandardSAEConfig(**plain(), normalize_activations="constant_norm_rescale")
        ),
        "gated": GatedSAE(GatedSAEConfig(**plain())),
        "jumprelu": JumpReLUSAE(JumpReLUSAEConfig(**plain())),
        "topk": TopKSAE(TopKSAEConfig(**plain(), k=4)),
        "topk_rescaled": TopKSAE(
            TopKSAEConfig(**plain(), k=4, rescale_acts_by_decoder_norm=True)
        ),
        "abstopk": AbsTopKSAE(AbsTopKSAEConfig(**plain(), k=4)),
        "abstopk_rescaled": AbsTopKSAE(
            AbsTopKSAEConfig(**plain(), k=4, rescale_acts_by_decoder_norm=True)
        ),
        "batchtopk": BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(**plain(), k=4)),
        "matryoshka": MatryoshkaBatchTopKTrainingSAE(
            MatryoshkaBatchTopKTrainingSAEConfig(
                **plain(), k=4, matryoshka_widths=[5, D_SAE]
            )
        ),
        "transcoder": Transcoder(TranscoderConfig(**across())),
        "skip_transcoder": SkipTranscoder(SkipTranscoderConfig(**across())),
        "jumprelu_transcoder": JumpReLUTranscoder(JumpReLUTranscoderConfig(**across())),
        "jumprelu_skip_transcoder": JumpReLUSkipTranscoder(
            JumpReLUSkipTranscoderConfig(**across())
        ),
    }
    for seed, (name, sae) in enumerate(saes.items()):
        fill(sae, seed)
        if hasattr(sae, "topk_threshold"):
            sae.topk_threshold.fill_(0.3)
        save(out, name, sae, tokens)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "golden")
