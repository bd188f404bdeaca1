"""The lab's worker for TransformerLens: one JSON request on stdin, one JSON answer on stdout (see protocol.rs)."""
import atexit, importlib.metadata, json, math, os, shutil, sys, tempfile, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
request, answer_to = json.load(sys.stdin), os.dup(1)
os.dup2(2, 1)  # whatever the libraries print goes to stderr: stdout is for the answer
import torch, transformers
from transformer_lens.model_bridge import TransformerBridge
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


def status(key, file="/proc/self/status"):
    with open(file) as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":")), 0)


def number(x):
    return x if math.isfinite(x) else str(x)  # JSON has no word for the others


def flat(tensor):
    return [number(x) for x in tensor.detach().float().flatten()[:COMPARED].tolist()]


def no_tokenizer():
    """The lab sends token ids; this library wants a tokenizer all the same."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    home = tempfile.mkdtemp()  # it reads the tokenizer again, from where it came
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a", bos_token="b", eos_token="b", pad_token="b").save_pretrained(home)
    return PreTrainedTokenizerFast.from_pretrained(home)


@torch.no_grad()
def main():
    where, start = source(), time.perf_counter()
    # Its hooks inside attention need attention written out; weights stay as they are: no folding, no centring.
    wrapped = load(where, attn_implementation="eager")
    model = TransformerBridge.boot_transformers(path, hf_model=wrapped, tokenizer=no_tokenizer(), dtype=dtype, device="cpu")

    def prefill(rows=ids, hooks=()):
        return model.run_with_hooks(rows, fwd_hooks=list(hooks))[-1, -1]

    logits = prefill().float()
    to_first = time.perf_counter() - start
    likeliest, order = logits.topk(5)
    depth = model.cfg.n_layers
    middle = depth // 2
    at = f"blocks.{middle}.hook_resid_post"
    direction = torch.tensor([((i * 37 % 101) / 50.0 - 1.0) * 0.5 for i in range(model.cfg.d_model)], dtype=dtype)

    def steered(stream, hook):
        return stream + direction

    def decode(steps):
        def generated(count):
            begin, kept = time.perf_counter(), [[] for _ in range(depth)]
            keep = lambda into: lambda stream, hook: into.append(stream)
            hooks = [(at, steered)] if name == "steer_decode" else []
            if name == "capture_decode":
                hooks = [(f"blocks.{layer}.hook_resid_post", keep(into)) for layer, into in enumerate(kept)]
            with model.hooks(fwd_hooks=hooks):
                out = model.generate(ids, max_new_tokens=count, do_sample=False, stop_at_eos=False, prepend_bos=False, return_type="tokens", verbose=False)
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

    # What each job makes: the logits of the last position unless its name says otherwise.
    jobs = dict(
        prefill=prefill,
        forward=lambda: model(ids)[0],
        armed=lambda: prefill(hooks=[(at, lambda stream, hook: None)]),
        capture=lambda: captured(depth)[-1][0],
        capture_layers=lambda: captured(job["layers"])[-1][0] if job["layers"] else prefill(),
        steer=lambda: prefill(hooks=[(at, steered)]),
        ablate=lambda: prefill(hooks=[(f"blocks.{middle}.mlp.hook_post", lambda neurons, hook: torch.zeros_like(neurons))]),
        pattern=pattern,
        lens=lambda: model.unembed(model.ln_final(torch.stack([stream[:, -1] for stream in captured(depth)]))),
        attribute=attribute,
        patch=lambda: prefill(pair, [(at, put)]))

    def timed():
        if "steps" in job:
            return decode(job["steps"])
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
        engine=f"transformer-lens {importlib.metadata.version('transformer-lens')}, transformers {transformers.__version__}, torch {torch.__version__}", load_to_first_token_s=to_first, samples_s=samples,
        peak_bytes=max(memory["load"], memory["run"]), memory=memory, weight_bytes=sum(p.numel() * p.element_size() for p in wrapped.parameters()),
        top=[[int(i), number(float(v))] for i, v in zip(order, likeliest)], decoded=decoded, values=flat(made) if len(made) else [],
        control=flat(prefill(plain)) if plain is not None else [])


try:
    answer = json.dumps(main())
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
with os.fdopen(answer_to, "w") as out:
    out.write(answer)
