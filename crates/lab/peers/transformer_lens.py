"""The lab's worker for TransformerLens, after `prelude.py` and `prelude_torch.py`."""
import importlib.metadata

from transformer_lens.model_bridge import TransformerBridge


@torch.no_grad()
def main():
    where, start = source(), time.perf_counter()
    # The hooks inside attention need unfused (eager) attention. Weights stay as they are: no
    # folding, no centering.
    wrapped = load(where, attn_implementation="eager")
    model = TransformerBridge.boot_transformers(path, hf_model=wrapped, tokenizer=tokenizer_in_a_directory(), dtype=dtype, device="cpu")

    def prefill(rows=ids, hooks=()):
        return model.run_with_hooks(rows, fwd_hooks=list(hooks))[-1, -1]

    logits = prefill()
    to_first = time.perf_counter() - start
    depth = model.cfg.n_layers
    middle = depth // 2
    at = f"blocks.{middle}.hook_resid_post"
    along = torch.tensor(direction(model.cfg.d_model), dtype=dtype)

    def steered(stream, hook):
        return stream + along

    def untouched(stream, hook):
        return None

    def decode(steps):
        def generated(count):
            begin, kept = time.perf_counter(), [[] for _ in range(depth)]
            keep = lambda into: lambda stream, hook: into.append(stream)
            hooks = {"steer_decode": [(at, steered)], "armed_decode": [(at, untouched)]}.get(name, [])
            if name == "capture_decode":
                hooks = [(f"blocks.{layer}.hook_resid_post", keep(into)) for layer, into in enumerate(kept)]
            with model.hooks(fwd_hooks=hooks):
                out = model.generate(batch, max_new_tokens=count, do_sample=False, stop_at_eos=False, prepend_bos=False, return_type="tokens", verbose=False)
            return time.perf_counter() - begin, out[0, len(tokens) :].tolist(), kept[-1]

        # The first new token comes from the prompt; each step after it is one decode.
        alone = generated(1)[0]
        whole, new, kept = generated(steps + 1)
        return (whole - alone) / steps, new, torch.cat(kept, 1) if kept else []

    def captured(count):
        names = [f"blocks.{layer}.hook_resid_post" for layer in range(min(count, depth))]
        cache = model.run_with_cache(ids, names_filter=lambda n: n in names)[1]
        return [cache[n] for n in names]

    def put(stream, hook):
        stream[1, -1] = stream[0, -1]
        return stream

    def attribute():
        kept = []

        def hold(stream, hook):
            kept.append(stream.detach().requires_grad_())
            return kept[0]

        with torch.enable_grad():
            logits = model.run_with_hooks(pair, fwd_hooks=[(at, hold)])
            (gradient,) = torch.autograd.grad(logits[1, -1, tokens[-1]], kept[0])
        return ((kept[0][0] - kept[0][1]) * gradient[1]).sum(-1)

    def pattern():
        where = f"blocks.{middle}.attn.hook_pattern"
        return model.run_with_cache(ids, names_filter=where)[1][where][0]

    # Output of each job: the last position's logits unless the name says otherwise.
    jobs = dict(
        prefill=prefill,
        forward=lambda: model(ids)[0],
        armed=lambda: prefill(hooks=[(at, untouched)]),
        capture=lambda: captured(depth)[-1][0],
        capture_layers=lambda: captured(job["layers"])[-1][0] if job["layers"] else prefill(),
        steer=lambda: prefill(hooks=[(at, steered)]),
        ablate=lambda: prefill(hooks=[(f"blocks.{middle}.mlp.hook_post", lambda neurons, hook: torch.zeros_like(neurons))]),
        pattern=pattern,
        lens=lambda: model.unembed(model.ln_final(torch.stack([stream[:, -1] for stream in captured(depth)]))),
        attribute=attribute,
        patch=lambda: prefill(pair, [(at, put)]))

    engine = f"transformer-lens {importlib.metadata.version('transformer-lens')}, transformers {transformers.__version__}, "
    return answer_of(engine, to_first, logits, wrapped, timed_jobs(jobs, decode), prefill)


reply(main)
