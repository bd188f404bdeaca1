"""Tiny files in torch's formats for crates/models/tests/it/pickles.rs, including a malicious one.

    python tests/golden/pickles.py
"""

import collections
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "crates/models/tests/pickles"


class Command:
    def __reduce__(self):
        return os.system, ("touch executed",)


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(0)
    whole = torch.randn(4, 3)
    tensors = collections.OrderedDict(
        matrix=whole,
        rows=whole[1:3],
        half=torch.randn(2, 2).half(),
        brain=torch.randn(5).bfloat16(),
        ids=torch.arange(-2, 3),
        small=torch.tensor([1, -1], dtype=torch.int8),
        flags=torch.tensor([True, False]),
        scalar=torch.tensor(2.5),
        nothing=torch.zeros(0, 3),
        parameter=torch.nn.Parameter(torch.ones(2)),
    )
    torch.save(tensors, OUT / "torch.bin")
    torch.save({"state_dict": dict(tensors), "epoch": 3, "loss": 0.5}, OUT / "nested.bin")
    torch.save(tensors, OUT / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"turned": whole.T}, OUT / "strided.bin")
    torch.save({"matrix": whole, "command": Command()}, OUT / "hostile.bin")
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, OUT / "same.safetensors")


main()
