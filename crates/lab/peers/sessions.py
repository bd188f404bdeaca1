"""The published workloads in TransformerLens with SAELens, after `prelude.py` and `prelude_torch.py`. The program ends with one JSON
answer (see analysis_sessions/peer.rs). One prompt per pass: a padded batch computes more."""
import importlib.metadata

from sae_lens import SAE
from sae_lens.analysis.sae_transformer_bridge import SAETransformerBridge

prompts = [torch.tensor([prompt]) for prompt in request["prompts"]]
forwards = 0


def load_saes():
    for directory in request["saes"]:
        sae = SAE.load_from_disk(directory, dtype="float32")
        with open(os.path.join(directory, "cfg.json")) as f:
            sae.cfg.metadata.hook_name = json.load(f)["metadata"]["hook_name"]  # loading drops the metadata
        yield sae


def main():
    start = time.perf_counter()
    wrapped = load(source(), attn_implementation="eager")
    model = SAETransformerBridge.boot_transformers(path, hf_model=wrapped, tokenizer=tokenizer_in_a_directory(), dtype=dtype, device="cpu")
    saes = list(load_saes())
    latents_at = [model.get_sae_hook_name(sae) for sae in saes]
    # Only the gradients of latents are needed; those of parameters would double the time.
    for module in [wrapped, *saes]:
        module.requires_grad_(False)
    load_s = time.perf_counter() - start

    def difference(logits, example):
        correct = request["labels"][example]
        scores = logits[0, -1, request["label_tokens"][example]]
        return scores[correct] - scores[1 - correct]

    def spliced(prompt, hooks=()):
        global forwards
        forwards += 1
        return model.run_with_hooks(prompt, fwd_hooks=list(hooks))

    def keep(kept):
        def hook(acts, hook):
            kept[hook.name] = acts
        return [(at, hook) for at in latents_at]

    def alive(acts):
        return acts[0, -1].nonzero().flatten().tolist()

    def base():
        with torch.no_grad():
            return [float(difference(spliced(prompt), example)) for example, prompt in enumerate(prompts)], []

    @torch.no_grad()
    def sae():
        diffs, rows = [], []
        for example, prompt in enumerate(prompts):
            kept = {}
            diffs.append(float(difference(spliced(prompt, keep(kept)), example)))
            for index, at in enumerate(latents_at):
                acts = kept[at]
                rows += [(example, index, latent, float(acts[0, -1, latent]), None) for latent in alive(acts)]
        return diffs, rows

    def attr_grad():
        diffs, rows = [], []
        for example, prompt in enumerate(prompts):
            kept = {}

            def hook(acts, hook):
                kept[hook.name] = acts
                # The first SAE's latents are leaves; those of later ones depend on them.
                acts.retain_grad() if acts.requires_grad else acts.requires_grad_()
                return acts

            value = difference(spliced(prompt, [(at, hook) for at in latents_at]), example)
            value.backward()
            diffs.append(float(value))
            for index, at in enumerate(latents_at):
                acts, gradient = kept[at].detach(), kept[at].grad
                rows += [(example, index, latent, float(acts[0, -1, latent]), float(acts[0, -1, latent] * gradient[0, -1, latent]))
                         for latent in alive(acts)]
        return diffs, rows

    @torch.no_grad()
    def attr_ablation():
        diffs, rows = [], []
        for example, prompt in enumerate(prompts):
            kept = {}
            before = float(difference(spliced(prompt, keep(kept)), example))
            diffs.append(before)
            for index, at in enumerate(latents_at):
                acts = kept[at].clone()
                for latent in alive(acts):

                    def zero(acts, hook):
                        acts[0, -1, latent] = 0
                        return acts

                    after = float(difference(spliced(prompt, [(at, zero)]), example))
                    rows.append((example, index, latent, float(acts[0, -1, latent]), before - after if after > 0 else 0.0))
        return diffs, rows

    workload = dict(base=base, sae=sae, attr_grad=attr_grad, attr_ablation=attr_ablation)[name]
    if name != "base":
        for one in saes:
            model.add_sae(one, use_error_term=False)
    start = time.perf_counter()
    logit_diffs, latents = workload()
    run_s = time.perf_counter() - start
    versions = ", ".join(f"{library} {importlib.metadata.version(library)}" for library in ("transformer-lens", "sae-lens", "transformers", "torch"))
    return dict(engine=versions, load_s=load_s, run_s=run_s, peak_bytes=status("VmHWM"), forwards=forwards, logit_diffs=logit_diffs, latents=latents)


reply(main)
