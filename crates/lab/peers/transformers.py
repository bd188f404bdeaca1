"""The lab's worker for Hugging Face transformers: one JSON request on stdin, one JSON answer on stdout (see protocol.rs)."""
import json, math, os, sys, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
request, answer_to = json.load(sys.stdin), os.dup(1)
os.dup2(2, 1)  # whatever the libraries print goes to stderr: stdout is for the answer
import torch, transformers
from transformers import AutoModelForCausalLM

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
if request.get("threads"):
    torch.set_num_threads(request["threads"])
dtype = {"auto": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[request["dtype"]]
path, job, tokens = request["model"], request["job"], request["tokens"]
name, job = (job, {}) if isinstance(job, str) else next(iter(job.items()))
ids, pair = torch.tensor([tokens]), torch.tensor([tokens, tokens[::-1]])
COMPARED = 4096


def source():
    """What the model is read from."""
    if not path.endswith(".gguf"):
        return dict(pretrained_model_name_or_path=path)
    file, size, changed = os.path.basename(path), os.path.getsize(path), int(os.path.getmtime(path))
    itself = dict(pretrained_model_name_or_path=os.path.dirname(path), gguf_file=file)
    if os.environ.get("PELLUCID_LAB_CONVERT") != "1":
        return itself
    # Reading GGUF takes half a minute each time; where that is not what is measured, a directory is made of it once.
    cache = os.environ.get("PELLUCID_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pellucid")
    kept = os.path.join(cache, "lab", "converted", f"{file}-{size}-{changed}")
    if not os.path.isdir(kept):
        made = AutoModelForCausalLM.from_pretrained(**itself, dtype=torch.float32)
        made.hf_quantizer = None  # its weights are plain by now
        made.config.__dict__.pop("quantization_config", None)
        made.save_pretrained(f"{kept}.{os.getpid()}")
        os.rename(f"{kept}.{os.getpid()}", kept)
    return dict(pretrained_model_name_or_path=kept)


def load(where, **more):
    return AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, **more).eval()


def first(module, names, what):
    found = next((getattr(module, n) for n in names if isinstance(getattr(module, n, None), torch.nn.Module)), None)
    return found if found is not None else sys.exit(f"{type(module).__name__} has no {what} that this adapter knows")


def parts(model):
    """The list of layers, and the module that holds it with the final norm."""
    depth = model.config.get_text_config().num_hidden_layers
    for where, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth:
            return module, model.get_submodule(where.rpartition(".")[0])
    sys.exit(f"{type(model).__name__} has no list of {depth} layers that this adapter knows")


def status(key, file="/proc/self/status"):
    with open(file) as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":")), 0)


def number(x):
    return x if math.isfinite(x) else str(x)  # JSON has no word for the others


def flat(tensor):
    return [number(x) for x in tensor.detach().float().flatten()[:COMPARED].tolist()]


def stream(output):
    return output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def main():
    where, start = source(), time.perf_counter()
    # Attention weights exist only where attention is written out.
    model = load(where, **(dict(attn_implementation="eager") if name == "pattern" else {}))
    logits = model(input_ids=ids, logits_to_keep=1).logits[0, -1].float()
    to_first = time.perf_counter() - start
    likeliest, order = logits.topk(5)
    layers, body = parts(model)
    middle = layers[len(layers) // 2]
    width = model.config.get_text_config().hidden_size
    direction = torch.tensor([((i * 37 % 101) / 50.0 - 1.0) * 0.5 for i in range(width)], dtype=dtype)

    def prefill(rows=ids, **more):
        return model(input_ids=rows, use_cache=False, logits_to_keep=1, **more).logits[-1, -1]

    def with_hooks(hooks, run):
        try:
            return run()
        finally:
            [hook.remove() for hook in hooks]

    def replaced(output, new):
        return (new, *output[1:]) if isinstance(output, tuple) else new

    def steering():
        return [middle.register_forward_hook(lambda m, a, o: replaced(o, stream(o) + direction))]

    def decode(steps):
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token, new = out.logits[:, -1:].argmax(-1), []
        begin = time.perf_counter()
        for _ in range(steps):
            new.append(token.item())
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        new.append(token.item())
        return (time.perf_counter() - begin) / steps, new

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
        down = first(mlp, ["down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out"], "last matrix of an MLP")
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

    # What each job makes: the logits of the last position unless its name says otherwise.
    jobs = dict(
        prefill=prefill,
        armed=lambda: with_hooks([middle.register_forward_hook(lambda m, a, o: None)], prefill),
        forward=lambda: model(input_ids=ids, use_cache=False).logits[0],
        capture=lambda: captured(layers)[1][-1][0],
        capture_layers=lambda: captured(layers[: job["layers"]])[1][-1][0] if job["layers"] else prefill(),
        steer=lambda: with_hooks(steering(), prefill),
        pattern=lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions[len(layers) // 2][0],
        ablate=ablate, lens=lens, patch=patch, attribute=attribute)

    def timed():
        if "steps" in job:
            kept = [[] for _ in layers]
            keep = lambda into: lambda m, a, o: into.append(stream(o))
            hooks = [layer.register_forward_hook(keep(into)) for layer, into in zip(layers, kept)] if name == "capture_decode" else []
            seconds, new = with_hooks(hooks + (steering() if name == "steer_decode" else []), lambda: decode(job["steps"]))
            return seconds, new, torch.cat(kept[-1], 1) if hooks else []
        begin = time.perf_counter()
        made = jobs[name]()
        return time.perf_counter() - begin, [], made

    memory, samples, decoded, made = dict(load=status("VmHWM")), [], [], []
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    for index in range(request["warmups"] + request["repeats"]):
        seconds, decoded, made = timed()
        if index >= request["warmups"]:
            samples.append(seconds)
    memory |= dict(run=status("VmHWM"), anonymous=status("RssAnon"), file=status("RssFile"), proportional=status("Pss", "/proc/self/smaps_rollup"))
    plain = {"steer": ids, "ablate": ids, "patch": pair[1:]}.get(name)
    return dict(
        engine=f"transformers {transformers.__version__}, torch {torch.__version__}", load_to_first_token_s=to_first, samples_s=samples,
        peak_bytes=max(memory["load"], memory["run"]), memory=memory, weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        top=[[int(i), number(float(v))] for i, v in zip(order, likeliest)], decoded=decoded, values=flat(made) if len(made) else [],
        control=flat(prefill(plain)) if plain is not None else [])


try:
    answer = json.dumps(main())
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
with os.fdopen(answer_to, "w") as out:
    out.write(answer)
