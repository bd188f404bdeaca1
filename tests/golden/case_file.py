"""One golden case in one file: `cases/<case>.safetensors`.

The tensors are those of the reference (generate.py lists them), `gradient/<name>` and `weight_gradient/<name>` (gradients.py). The metadata has one
key, `case`: JSON with `config`, which is config.json, and `weights`, from which the weights follow (weights.py).
`crates/golden` reads it.
"""
import json
from safetensors import safe_open
from safetensors.torch import save_file

GRADIENT, WEIGHT_GRADIENT = "gradient/", "weight_gradient/"


def write(path, config, weights, tensors):
    # One key: the order of several is not fixed, and the same case should be the same bytes.
    about = {"case": json.dumps({"config": config, "weights": weights}, separators=(",", ":"))}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=about)


def read(path):
    """Configuration, weights, tensors."""
    with safe_open(path, "pt") as file:
        case = json.loads(file.metadata()["case"])
        return case["config"], case["weights"], {name: file.get_tensor(name) for name in file.keys()}


def reference(tensors):
    """The tensors without gradients."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith((GRADIENT, WEIGHT_GRADIENT))}
