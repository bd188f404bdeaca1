"""The peer of `lab capture` and `lab serving`, after `prelude.py` and `prelude_torch.py`: `generate` of transformers
alone, with forward hooks, or with `output_hidden_states`, on padded batches of the requests' prompts."""
prompts, new_tokens, layers = request["prompts"], request["new_tokens"], request["layers"]


def decoder_layers(model):
    depth = model.config.get_text_config().num_hidden_layers
    found = next((m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth), None)
    return found if found is not None else sys.exit(f"{type(model).__name__} has no list of {depth} layers that this adapter knows")


@torch.no_grad()
def main():
    model = load(source())
    # Exactly the requested number of tokens, as in the other workers.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    resident = status("VmRSS")
    batch_size = request.get("padded_batch") or len(prompts)

    def generate(which, count):
        """Generates for some requests as one left-padded batch; returns the new tokens and each layer's activations."""
        longest = max(len(prompts[r]) for r in which)
        padded = torch.tensor([[0] * (longest - len(prompts[r])) + prompts[r] for r in which])
        mask = torch.tensor([[0] * (longest - len(prompts[r])) + [1] * len(prompts[r]) for r in which])
        kept, hooks = {layer: [] for layer in layers}, []
        if name == "hooks":
            for layer in layers:
                keep = lambda m, a, o, into=kept[layer]: into.append(o[0] if isinstance(o, tuple) else o)
                hooks.append(decoder_layers(model)[layer].register_forward_hook(keep))
        states = name == "hidden-states"
        out = model.generate(padded, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, use_cache=True, return_dict_in_generate=True, output_hidden_states=states)
        [hook.remove() for hook in hooks]
        if states:
            # One tuple per step; `hidden_states[0]` is the embedding.
            kept = {layer: [step[layer + 1] for step in out.hidden_states] for layer in layers}
        return out.sequences[:, longest:].tolist(), kept, longest

    def iteration():
        order = sorted(range(len(prompts)), key=lambda r: len(prompts[r])) if request.get("padded_batch") else list(range(len(prompts)))
        batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        begin, cpu, tokens, made = time.perf_counter(), time.process_time(), {}, []
        for which in batches:
            new, kept, longest = generate(which, max(new_tokens[r] for r in which))
            tokens |= {r: row[: new_tokens[r]] for r, row in zip(which, new)}
            made.append((which, kept, longest))
        generation, cpu = time.perf_counter() - begin, time.process_time() - cpu
        begin, captured = time.perf_counter(), {}
        for which, kept, longest in made:
            for layer, steps in kept.items():
                if not steps:
                    continue
                whole = torch.cat(steps, 1)  # [batch, longest + new - 1, width]
                for row, r in enumerate(which):
                    first = longest - len(prompts[r])
                    captured[r, layer] = whole[row, first : longest + new_tokens[r] - 1].clone()
        fetch = time.perf_counter() - begin
        return generation, cpu, fetch, [tokens[r] for r in range(len(prompts))], captured

    # A short batch warms up; a whole iteration would double the time of a slow peer.
    generate(list(range(min(2, len(prompts)))), 2)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    iterations, total = [], sum(map(len, prompts)) + sum(new_tokens)
    for index in range(request["iterations"]):
        generation, cpu, fetch, tokens, captured = iteration()
        iterations.append(dict(iteration=index + 1, generation_time=generation, fetch_time=fetch, total_time=generation + fetch, throughput_tokens_per_sec=total / generation, process=1, cpu_time=cpu, max_concurrency=batch_size))
    middle = layers[len(layers) // 2] if layers else None
    sample = captured[0, middle][len(prompts[0]) - 1].tolist() if captured else []
    return dict(
        engine=f"transformers {transformers.__version__}, torch {torch.__version__}", iterations=iterations, tokens=tokens,
        captured_bytes=sum(array.numel() * 4 for array in captured.values()), peak_bytes=status("VmHWM"), resident_bytes=resident, sample=[number(x) for x in sample])


reply(main)
