"""Walks the public API with wrong but plausible arguments: each call works or raises an error of
the package, never a raw error of Python, numpy or the bindings.
"""

import numpy as np
import pytest
from conftest import DOG, REPOSITORY, STORY

import pellucid

ODD = {
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "negative": -1,
    "zero": 0,
    "huge": 10**30,
    "true": True,
    "float": 1.5,
    "text": "many",
    "empty text": "",
    "surrogate": b"\\ud800".decode("unicode_escape"),
    "bytes": b"abc",
    "numpy float": np.float64(2.5),
    "numpy int": np.int64(1),
    "numpy bool": np.bool_(True),
    "empty list": [],
    "nested list": [[]],
    "list of None": [None],
    "duplicates": [0, 0],
    "matrix": np.ones((2, 3)),
    "float array": np.array([0.5, 1.5]),
    "complex": np.ones(3, complex),
    "object array": np.array([object()]),
    "empty array": np.zeros(0),
    "generator": None,
    "dict": {"a": 1},
    "set": {1},
    "function": len,
    "object": object(),
    "slice": slice(0, 2),
    "tuple": (0, 1),
}


def calls(model, cache, tokenizer, vectors):
    """`name → function of one argument` of the public API outside blocks."""
    return {
        "load": lambda x: pellucid.load(x) if x is not None else None,
        "load dtype": lambda x: pellucid.load(dtype=x),
        "load threads": lambda x: pellucid.load(threads=x),
        "load adapters": lambda x: pellucid.load(adapters=x),
        "load assume": lambda x: pellucid.load(assume=x),
        "load kv": lambda x: pellucid.load(kv=x),
        "load option": lambda x: pellucid.load(device=x),
        "inspect": pellucid.inspect,
        "strategies": pellucid.strategies,
        "load_tokenizer": pellucid.load_tokenizer,
        "load_sae": pellucid.load_sae,
        "register": lambda x: pellucid.register_architecture(x, "no such family"),
        "tokenizer encode": tokenizer.encode,
        "tokenizer decode": tokenizer.decode,
        "tokenizer token_text": tokenizer.token_text,
        "tokenizer find": tokenizer.find,
        "call": model,
        "return_type": lambda x: model(DOG, x),
        "stop_at_layer": lambda x: model(DOG, stop_at_layer=x),
        "trace": model.trace,
        "trace chunk": lambda x: model.run(DOG, capture="logits", chunk=x),
        "trace threads": lambda x: model.run(DOG, capture="logits", threads=x),
        "generate": lambda x: model.generate(x, max_new=1),
        **{
            f"generate {name}": lambda x, name=name: model.generate(DOG, **{"max_new": 1, name: x}).text
            for name in [
                "max_new",
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "repetition_penalty",
                "seed",
                "stop",
                "eos",
                "chunk",
                "lookup",
                "threads",
                "watch",
                "steer",
                "capture_dtype",
                "capture_memory",
            ]
        },
        "run plan": lambda x: model.run(DOG, x),
        "run taps": lambda x: model.run(DOG, {"taps": x}),
        "run tap": lambda x: model.run(DOG, {"taps": [{"site": "layers.0.z", "set": x}]}),
        "run capture": lambda x: model.run(DOG, capture=x),
        "run positions": lambda x: model.run(DOG, capture="logits", positions=x),
        "check": lambda x: model.check(x, DOG),
        "explain": lambda x: model.explain(x, DOG),
        "edit": lambda x: model.edit(x) if x is not None else None,
        "without_edits": model.without_edits,
        "unembed": model.unembed,
        "to_tokens": model.to_tokens,
        "to_str_tokens": model.to_str_tokens,
        "to_string": model.to_string,
        "to_single_token": model.to_single_token,
        "weight": model.weight,
        "with_weights": model.with_weights,
        "with_weights array": lambda x: model.with_weights({"layers.0.mlp.down": x}),
        "sites": lambda x: model.sites[x],
        "find": model.sites.find,
        "base": model.base,
        "prefix": model.prefix,
        "prefixes": model.prefixes,
        "attach": model.attach,
        "attach site": lambda x: model.attach("builtin", x),
        "detach": lambda x: model.detach(x) if x is not None else None,
        "spliced": lambda x: model.spliced(x),
        "chat": lambda x: model.chat(x),
        "extract pairs": lambda x: model.extract_steering(x),
        "extract layers": lambda x: model.extract_steering([(DOG, STORY)], layers=x),
        "extract method": lambda x: model.extract_steering([(DOG, STORY)], method=x),
        "extract positions": lambda x: model.extract_steering([(DOG, STORY)], positions=x),
        "extract point": lambda x: model.extract_steering([(DOG, STORY)], point=x),
        "vectors": pellucid.SteeringVectors,
        "vectors select": vectors.select,
        "vectors load": pellucid.SteeringVectors.load,
        "steer layer": lambda x: model.steer(x, np.ones(128)),
        "steer vector": lambda x: model.steer(1, x),
        "steer factor": lambda x: model.steer(1, np.ones(128), factor=x),
        "steer positions": lambda x: model.steer(1, np.ones(128), positions=x)(DOG),
        "skip_layers": lambda x: model.skip_layers(x, 2),
        "logit_lens layers": lambda x: model.logit_lens(DOG, layers=x),
        "activations position": lambda x: model.get_token_activations(DOG, position=x),
        "activations point": lambda x: model.get_token_activations(DOG, point=x),
        "blocks": lambda x: model.blocks[x],
        "directions": model.tokens_to_residual_directions,
        "cache filter": lambda x: model.run_with_cache(DOG, names_filter=x),
        "cache pos_slice": lambda x: model.run_with_cache(DOG, pos_slice=x),
        "hooks": lambda x: model.run_with_hooks(DOG, fwd_hooks=x),
        "hook": lambda x: model.run_with_hooks(DOG, fwd_hooks=[("blocks.0.hook_resid_post", x)]),
        "hook result": lambda x: model.run_with_hooks(DOG, fwd_hooks=[("blocks.0.hook_resid_post", lambda a, hook: x)]),
        "hook name": lambda x: model.run_with_hooks(DOG, fwd_hooks=[(x, lambda a, hook: None)]),
        "cache item": lambda x: cache[x],
        "cache layer": lambda x: cache["z", x],
        "accumulated": cache.accumulated_resid,
        "accumulated pos": lambda x: cache.accumulated_resid(pos_slice=x),
        "neurons": lambda x: cache.get_neuron_results(x, neuron_slice=0),
        "neuron slice": lambda x: cache.get_neuron_results(0, neuron_slice=x, pos_slice=0),
        "logit_attrs": lambda x: cache.logit_attrs(cache.decompose_resid(), x),
        "decompose mode": lambda x: cache.decompose_resid(mode=x),
        "lens type": lambda x: cache.logit_lens(pos_slice=-1, return_type=x),
        "act name": pellucid.transformer_lens.get_act_name,
    }


OWN = {("generate watch", "function"), ("hook", "function")}
"""Functions of the caller, whose exceptions are raised unchanged."""


def value_of(odd):
    return (number for number in (1, 2)) if odd == "generator" else ODD[odd]


@pytest.fixture(scope="module")
def api(model):
    _, cache = model.run_with_cache(DOG)
    vectors = pellucid.SteeringVectors({1: np.ones(128)})
    builtin = pellucid.load_tokenizer(REPOSITORY / "crates/models/builtin")
    return calls(model, cache, builtin, vectors)


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_calls_outside_blocks(api, odd):
    raw = []
    for name, call in api.items():
        if (name, odd) in OWN:
            continue
        try:
            call(value_of(odd))
        except pellucid.Error:
            pass
        except Exception as error:
            raw.append(f"{name}: {type(error).__name__}: {error}")
    assert not raw, "\n".join(raw)


def in_block(t):
    """`name → function of one argument` inside a block."""
    h, computed = t.layers[2].resid_post, t.layers[2].resid_post * 2
    return {
        "site": lambda x: t[x],
        "layer": lambda x: t.layers[x],
        "set": lambda x: t.__setitem__("layers.1.resid_post", x),
        "set part": lambda x: h.__setitem__((slice(None), -1), x),
        "set attribute": lambda x: setattr(t.layers[1], "mlp_out", x),
        "index": lambda x: h[x],
        "index position": lambda x: h[:, x],
        "index unit": lambda x: h[:, :, x],
        "index computed": lambda x: computed[x],
        "index computed position": lambda x: computed[:, x],
        "index head": lambda x: t.layers[2].z[:, :, x],
        "update": lambda x: computed.copy().__setitem__((slice(None), 0), x),
        "skip": lambda x: t.layers[3].skip(x),
        **{
            name: lambda x, name=name: getattr(computed, name)(x)
            for name in [
                "__add__",
                "__rsub__",
                "__mul__",
                "__truediv__",
                "__pow__",
                "__matmul__",
                "__rmatmul__",
                "__lt__",
                "__eq__",
                "maximum",
                "clip",
                "sum",
                "mean",
                "max",
                "argmax",
                "norm",
                "var",
                "softmax",
                "log_softmax",
                "topk",
                "reshape",
                "permute",
                "take",
                "unsqueeze",
            ]
        },
        "swapaxes": lambda x: computed.swapaxes(x, -1),
        "where": lambda x: t.where(computed > 0, computed, x),
        "concat": lambda x: t.concat(x),
        "concat axis": lambda x: t.concat([computed, computed], x),
        "stack": lambda x: t.stack(x),
        "stack axis": lambda x: t.stack([computed, computed], x),
        "call": lambda x: t.call(x, computed),
        "call result": lambda x: t.call(lambda a: x, computed).save(),
        "constant": lambda x: t.constant(x),
        "unembed": lambda x: t.unembed(x),
        "through": lambda x: t.through(computed, x, "layers.4.resid_post"),
        "gradient at": lambda x: t.gradient(t.logits.sum(), x),
        "gradient of": lambda x: t.gradient(x, h),
        "weight_grad": lambda x: t.weight_grad(x, of=t.logits.sum()),
        "cache": lambda x: t.cache(x),
        "row": lambda x: t.row(x),
        "np.clip": lambda x: np.clip(computed, x, 1),
        "np.mean": lambda x: np.mean(computed, axis=x),
        "np.add": lambda x: np.add(computed, x),
    }


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_calls_inside_blocks(model, odd):
    """Each in a block of its own, which also runs: a wrong argument may be noticed at its end."""
    with model.trace(DOG) as t:
        names = list(in_block(t))
    raw = []
    for name in names:
        try:
            with model.trace(DOG) as t:
                result = in_block(t)[name](value_of(odd))
                if isinstance(result, pellucid.Value):
                    result.save()
                t.logits[:, -1].save()
        except pellucid.Error:
            pass
        except Exception as error:
            raw.append(f"{name}: {type(error).__name__}: {error}")
    assert not raw, "\n".join(raw)


def test_engine_requests(model):
    raw = []
    with model.engine() as engine:
        for odd in ODD:
            for name, call in {
                "prompt": lambda x: engine.submit(x, max_new=1),
                "plan": lambda x: engine.submit(DOG, x, max_new=1),
                "capture": lambda x: engine.submit(DOG, capture=x, max_new=1),
                "max_new": lambda x: engine.submit(DOG, max_new=x),
                "generate": lambda x: engine.generate(x, max_new=1),
            }.items():
                try:
                    call(value_of(odd))
                except pellucid.Error:
                    pass
                except Exception as error:
                    raw.append(f"{name}({odd}): {type(error).__name__}: {error}")
    assert not raw, "\n".join(raw)
