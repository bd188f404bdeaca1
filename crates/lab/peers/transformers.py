"""The lab's worker for Hugging Face transformers, after `prelude.py` and `prelude_torch.py`."""


def first(module, names, what):
    found = next((getattr(module, n) for n in names if isinstance(getattr(module, n, None), torch.nn.Module)), None)
    return found if found is not None else sys.exit(f"{type(module).__name__} has no {what} that this adapter knows")


def parts(model):
    """Returns the list of layers and the module that contains it and the final norm."""
    depth = model.config.get_text_config().num_hidden_layers
    for where, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth:
            return module, model.get_submodule(where.rpartition(".")[0])
    sys.exit(f"{type(model).__name__} has no list of {depth} layers that this adapter knows")


def stream(output):
    return output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def main():
    where, start = source(), time.perf_counter()
    # Attention weights exist only in unfused (eager) attention.
    model = load(where, **(dict(attn_implementation="eager") if name == "pattern" else {}))
    logits = model(input_ids=ids, logits_to_keep=1).logits[0, -1]
    to_first = time.perf_counter() - start
    layers, body = parts(model)
    middle = layers[len(layers) // 2]
    along = torch.tensor(direction(model.config.get_text_config().hidden_size), dtype=dtype)

    def prefill(rows=ids, **more):
        return model(input_ids=rows, use_cache=False, logits_to_keep=1, **more).logits[-1, -1]

    def with_hooks(hooks, run):
        try:
            return run()
        finally:
            [hook.remove() for hook in hooks]

    def replaced(output, new):
        return (new, *output[1:]) if isinstance(output, tuple) else new

    def no_op_hook():
        return [middle.register_forward_hook(lambda m, a, o: None)]

    def steering():
        return [middle.register_forward_hook(lambda m, a, o: replaced(o, stream(o) + along))]

    def decode(steps):
        kept = [[] for _ in layers]
        keep = lambda into: lambda m, a, o: into.append(stream(o))
        hooks = {
            "capture_decode": lambda: [layer.register_forward_hook(keep(into)) for layer, into in zip(layers, kept)],
            "armed_decode": no_op_hook,
            "steer_decode": steering,
        }.get(name, list)()

        def generate():
            out = model(input_ids=batch, use_cache=True, logits_to_keep=1)
            token, new = out.logits[:, -1:].argmax(-1), []
            begin = time.perf_counter()
            for _ in range(steps):
                new.append(token[0].item())
                out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            new.append(token[0].item())
            return (time.perf_counter() - begin) / steps, new

        seconds, new = with_hooks(hooks, generate)
        return seconds, new, torch.cat(kept[-1], 1) if kept[-1] else []

    def captured(which):
        kept = []
        hooks = [layer.register_forward_hook(lambda m, a, o: kept.append(stream(o))) for layer in which]
        return with_hooks(hooks, prefill), kept

    def lens():
        kept = torch.stack([h[0, -1] for h in captured(layers)[1]])
        norm = first(body, ["norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f", "ln_final"], "final norm")
        out = model.get_output_embeddings()(norm(kept))
        cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        return torch.tanh(out / cap) * cap if cap else out

    def ablate():
        mlp = getattr(middle, "mlp", middle)
        down = first(mlp, ["down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out"], "MLP down projection")
        return with_hooks([down.register_forward_pre_hook(lambda m, a: (torch.zeros_like(a[0]),))], prefill)

    def patch():
        def put(module, args, output):
            hidden = stream(output).clone()
            hidden[1, -1] = hidden[0, -1]
            return replaced(output, hidden)

        return with_hooks([middle.register_forward_hook(put)], lambda: prefill(pair))

    def attribute():
        kept = []

        def put(module, args, output):
            kept.append(stream(output).detach().requires_grad_())
            return replaced(output, kept[0])

        with torch.enable_grad():
            logits = with_hooks([middle.register_forward_hook(put)], lambda: model(input_ids=pair, use_cache=False, logits_to_keep=1).logits)
            (gradient,) = torch.autograd.grad(logits[1, -1, tokens[-1]], kept[0])
        return ((kept[0][0] - kept[0][1]) * gradient[1]).sum(-1)

    # Output of each job: the last position's logits unless the name says otherwise.
    jobs = dict(
        prefill=prefill,
        armed=lambda: with_hooks(no_op_hook(), prefill),
        forward=lambda: model(input_ids=ids, use_cache=False).logits[0],
        capture=lambda: captured(layers)[1][-1][0],
        capture_layers=lambda: captured(layers[: job["layers"]])[1][-1][0] if job["layers"] else prefill(),
        steer=lambda: with_hooks(steering(), prefill),
        pattern=lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions[len(layers) // 2][0],
        ablate=ablate, lens=lens, patch=patch, attribute=attribute)

    return answer_of(f"transformers {transformers.__version__}, ", to_first, logits, model, timed_jobs(jobs, decode), prefill)


reply(main)
