"""The lab's worker for nnsight: one JSON request on stdin, one JSON answer on stdout (see protocol.rs)."""
import functools, json, math, os, sys, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
request, answer_to = json.load(sys.stdin), os.dup(1)
os.dup2(2, 1)  # whatever the libraries print goes to stderr: stdout is for the answer
import torch, transformers, nnsight
from nnsight.modeling.transformers import TransformersModel
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
    found = next((getattr(module, n) for n in names if isinstance(getattr(module, n, None), nnsight.Envoy)), None)
    return found if found is not None else sys.exit(f"{type(module._module).__name__} has no {what} that this adapter knows")


def parts(model):
    """The list of layers, and the module that holds it with the final norm."""
    depth = model._module.config.get_text_config().num_hidden_layers
    for where, module in model._module.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth:
            body = functools.reduce(getattr, where.split(".")[:-1], model)
            return getattr(body, where.split(".")[-1]), body
    sys.exit(f"{type(model._module).__name__} has no list of {depth} layers that this adapter knows")


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
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a", bos_token="b", eos_token="b", pad_token="b")


@torch.no_grad()
def main():
    where, start = source(), time.perf_counter()
    wrapped = load(where, **(dict(attn_implementation="eager") if name == "pattern" else {}))
    wrapped.generation_config.eos_token_id = None  # decode jobs go on to their last step
    model = TransformersModel(wrapped, task="text-generation", tokenizer=no_tokenizer())

    def prefill(rows=ids, edit=lambda: None):
        with model.trace(rows, logits_to_keep=1):
            edit()
            out = model.output.logits[-1, -1].save()
        return out

    logits = prefill().float()
    to_first = time.perf_counter() - start
    likeliest, order = logits.topk(5)
    layers, body = parts(model)
    middle = layers[len(layers) // 2]
    width = wrapped.config.get_text_config().hidden_size
    direction = torch.tensor([((i * 37 % 101) / 50.0 - 1.0) * 0.5 for i in range(width)], dtype=dtype)
    # Whether a layer returns its stream alone or first in a tuple is the architecture's choice.
    with model.trace(ids):
        is_tuple = nnsight.save(isinstance(middle.output, tuple))

    def stream(layer):
        return layer.output[0] if is_tuple else layer.output

    def steered():
        new = stream(middle) + direction
        middle.output = (new, *middle.output[1:]) if is_tuple else new

    def decode(steps):
        def generated(count):
            begin = time.perf_counter()
            with model.generate(ids, max_new_tokens=count, do_sample=False) as tracer:
                kept = nnsight.save([])
                if name == "steer_decode":
                    for step in tracer.iter[:count]:
                        steered()
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
        down = first(mlp, ["down_proj", "c_proj", "dense_4h_to_h", "fc2", "fc_out"], "last matrix of an MLP")

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

    # What each job makes: the logits of the last position unless its name says otherwise.
    jobs = dict(
        prefill=prefill, forward=forward, ablate=ablate, pattern=pattern, lens=lens, patch=patch, attribute=attribute,
        armed=lambda: prefill(edit=lambda: stream(middle)),
        steer=lambda: prefill(edit=steered),
        capture=lambda: captured(layers)[-1][0],
        capture_layers=lambda: captured(layers[: job["layers"]])[-1][0] if job["layers"] else prefill())

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
        engine=f"nnsight {nnsight.__version__}, transformers {transformers.__version__}, torch {torch.__version__}", load_to_first_token_s=to_first, samples_s=samples,
        peak_bytes=max(memory["load"], memory["run"]), memory=memory, weight_bytes=sum(p.numel() * p.element_size() for p in wrapped.parameters()),
        top=[[int(i), number(float(v))] for i, v in zip(order, likeliest)], decoded=decoded, values=flat(made) if len(made) else [],
        control=flat(prefill(plain)) if plain is not None else [])


try:
    answer = json.dumps(main())
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
with os.fdopen(answer_to, "w") as out:
    out.write(answer)
