"""One golden case in one file: `cases/<case>.safetensors`.

The tensors are the reference (listed in generate.py), `gradient/<name>` and
`weight_gradient/<name>` (gradients.py). The metadata has one key, `case`: JSON with `config`
(config.json) and `weights` (the manifest from which weights.py computes the weights).
`crates/golden` reads the file.
"""
import json
from safetensors import safe_open
from safetensors.torch import save_file

GRADIENT, WEIGHT_GRADIENT = "gradient/", "weight_gradient/"


def write(path, config, weights, tensors):
    # A single key, because the order of several is not fixed and the file must be reproducible to
    # the byte.
    about = {"case": json.dumps({"config": config, "weights": weights}, separators=(",", ":"))}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=about)


def read(path):
    """Returns configuration, manifest of the weights, and tensors."""
    with safe_open(path, "pt") as file:
        case = json.loads(file.metadata()["case"])
        return case["config"], case["weights"], {name: file.get_tensor(name) for name in file.keys()}


def reference(tensors):
    """The tensors without gradients."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith((GRADIENT, WEIGHT_GRADIENT))}
