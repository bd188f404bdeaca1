"""The lab's worker for Hugging Face transformers: one JSON request on stdin, one JSON answer on stdout (see protocol.rs)."""
import json, os, sys, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
request = json.load(sys.stdin)
import torch, transformers
from transformers import AutoModelForCausalLM

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
if request.get("threads"):
    torch.set_num_threads(request["threads"])
dtype = {"auto": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[request["dtype"]]
path, job, ids = request["model"], request["job"], torch.tensor([request["tokens"]])


def load():
    if path.endswith(".gguf"):
        return AutoModelForCausalLM.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path), dtype=dtype)
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


@torch.no_grad()
def main():
    start = time.perf_counter()
    model = load().eval()
    logits = model(input_ids=ids, logits_to_keep=1).logits[0, -1].float()
    first = time.perf_counter() - start
    values, order = logits.topk(5)

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

    def timed():
        if isinstance(job, dict):
            return decode(job["decode"]["steps"])
        begin = time.perf_counter()
        if job == "forward":
            model(input_ids=ids, use_cache=False)
        elif job == "prefill":
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
        elif job == "capture":
            kept = []
            hooks = [layer.register_forward_hook(lambda m, a, o: kept.append(o[0] if isinstance(o, tuple) else o)) for layer in model.model.layers]
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
            [hook.remove() for hook in hooks]
        return time.perf_counter() - begin, []

    samples, decoded = [], []
    for index in range(request["warmups"] + request["repeats"]):
        seconds, decoded = timed()
        if index >= request["warmups"]:
            samples.append(seconds)
    with open("/proc/self/status") as f:
        peak = next((int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM")), 0)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    json.dump(dict(engine=f"transformers {transformers.__version__}, torch {torch.__version__}", load_to_first_token_s=first, samples_s=samples,
                   peak_bytes=peak, weight_bytes=weights, top=[[int(i), float(v)] for i, v in zip(order, values)], decoded=decoded), sys.stdout)


main()
