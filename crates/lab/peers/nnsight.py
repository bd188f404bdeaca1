"""The lab's worker for nnsight, after `prelude.py` and `prelude_torch.py`."""
import functools

import nnsight
from nnsight.modeling.transformers import TransformersModel


def first(module, names, what):
    found = next((getattr(module, n) for n in names if isinstance(getattr(module, n, None), nnsight.Envoy)), None)
    return found if found is not None else sys.exit(f"{type(module._module).__name__} has no {what} that this adapter knows")


def parts(model):
    """Returns the list of layers and the module that contains it and the final norm."""
    depth = model._module.config.get_text_config().num_hidden_layers
    for where, module in model._module.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth:
            body = functools.reduce(getattr, where.split(".")[:-1], model)
            return getattr(body, where.split(".")[-1]), body
    sys.exit(f"{type(model._module).__name__} has no list of {depth} layers that this adapter knows")


@torch.no_grad()
def main():
    where, start = source(), time.perf_counter()
    wrapped = load(where, **(dict(attn_implementation="eager") if name == "pattern" else {}))
    wrapped.generation_config.eos_token_id = None  # decode jobs must not stop early
    model = TransformersModel(wrapped, task="text-generation", tokenizer=dummy_tokenizer())

    def prefill(rows=ids, edit=lambda: None):
        with model.trace(rows, logits_to_keep=1):
            edit()
            out = model.output.logits[-1, -1].save()
        return out

    logits = prefill()
    to_first = time.perf_counter() - start
    layers, body = parts(model)
    middle = layers[len(layers) // 2]
    along = torch.tensor(direction(wrapped.config.get_text_config().hidden_size), dtype=dtype)
    # Depending on the architecture, a layer returns the residual stream or a tuple that starts with
    # it.
    with model.trace(ids):
        is_tuple = nnsight.save(isinstance(middle.output, tuple))

    def stream(layer):
        return layer.output[0] if is_tuple else layer.output

    def steered():
        new = stream(middle) + along
        middle.output = (new, *middle.output[1:]) if is_tuple else new

    def decode(steps):
        def generated(count):
            begin = time.perf_counter()
            with model.generate(batch, max_new_tokens=count, do_sample=False) as tracer:
                kept = nnsight.save([])
                if name == "steer_decode":
                    for step in tracer.iter[:count]:
                        steered()
                if name == "armed_decode":
                    for step in tracer.iter[:count]:
                        stream(middle)
                if name == "capture_decode":
                    for step in tracer.iter[:count]:
                        kept.append([stream(layer) for layer in layers])
                out = tracer.result.save()
            return time.perf_counter() - begin, out[0, len(tokens) :].tolist(), kept

        # The first new token comes from the prompt; each step after it is one decode.
        alone = generated(1)[0]
        whole, new, kept = generated(steps + 1)
        return (whole - alone) / steps, new, torch.cat([step[-1] for step in kept], 1) if kept else []

    def captured(which):
        with model.trace(ids, logits_to_keep=1):
            kept = nnsight.save([stream(layer) for layer in which])
        return kept

    def lens():
        norm = first(body, ["norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f", "ln_final"], "final norm")
        kept = torch.stack([hidden[0, -1] for hidden in captured(layers)])
        return wrapped.get_output_embeddings()(norm._module(kept))

    def ablate():
        mlp = getattr(middle, "mlp", middle)
        down = first(mlp, ["down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out"], "MLP down projection")

        def zero():
            down.input = torch.zeros_like(down.input)

        return prefill(edit=zero)

    def patch():
        with model.trace(logits_to_keep=1) as tracer:
            barrier = tracer.barrier(2)
            with tracer.invoke(pair[:1]):
                clean = stream(middle)[:, -1]
                barrier()
            with tracer.invoke(pair[1:]):
                barrier()
                stream(middle)[:, -1] = clean
                out = model.output.logits[-1, -1].save()
        return out

    def attribute():
        with torch.enable_grad(), model.trace(pair, logits_to_keep=1):
            hidden = stream(middle)
            kept = hidden.detach().save()
            logit = model.output.logits[1, -1, tokens[-1]]
            with logit.backward():
                gradient = hidden.grad.save()
        return ((kept[0] - kept[1]) * gradient[1]).sum(-1)

    def pattern():
        attention = first(middle, ["self_attn", "attn", "attention", "self_attention"], "attention")
        with model.trace(ids, logits_to_keep=1):
            out = attention.output[1].save()
        return out[0]

    def forward():
        with model.trace(ids):
            out = model.output.logits[0].save()
        return out

    # Output of each job: the last position's logits unless the name says otherwise.
    jobs = dict(
        prefill=prefill, forward=forward, ablate=ablate, pattern=pattern, lens=lens, patch=patch, attribute=attribute,
        armed=lambda: prefill(edit=lambda: stream(middle)),
        steer=lambda: prefill(edit=steered),
        capture=lambda: captured(layers)[-1][0],
        capture_layers=lambda: captured(layers[: job["layers"]])[-1][0] if job["layers"] else prefill())

    engine = f"nnsight {nnsight.__version__}, transformers {transformers.__version__}, "
    return answer_of(engine, to_first, logits, wrapped, timed_jobs(jobs, decode), prefill)


reply(main)
