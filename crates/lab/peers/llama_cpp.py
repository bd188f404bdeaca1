"""The lab's worker for llama.cpp through its Python binding: one JSON request on stdin, one JSON answer on stdout (see protocol.rs)."""
import ctypes, json, math, os, sys, time

request, answer_to = json.load(sys.stdin), os.dup(1)
os.dup2(2, 1)  # whatever the libraries print goes to stderr: stdout is for the answer
import llama_cpp, numpy

path, job, tokens = request["model"], request["job"], request["tokens"]
name, job = (job, {}) if isinstance(job, str) else next(iter(job.items()))
COMPARED = 4096
if not path.endswith(".gguf"):
    sys.exit("llama.cpp reads GGUF files only: name one with --model")
if request["dtype"] != "auto":
    sys.exit(f"llama.cpp keeps weights as they are stored, not as {request['dtype']}: give its variant dtype = \"auto\"")
if name not in ("prefill", "forward", "decode", "steer", "steer_decode"):
    sys.exit(f"llama.cpp cannot do {name}: its interface neither shows nor changes activations, but for control vectors")


def status(key, file="/proc/self/status"):
    with open(file) as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":")), 0)


def number(x):
    x = float(x)
    return x if math.isfinite(x) else str(x)  # JSON has no word for the others


def main():
    start = time.perf_counter()
    threads = request.get("threads") or os.cpu_count()
    steps = job.get("steps", 0)
    model = llama_cpp.Llama(model_path=path, n_ctx=len(tokens) + steps + 8, n_batch=max(512, len(tokens)), n_threads=threads,
                            n_threads_batch=threads, logits_all=name == "forward", verbose=False)
    vocabulary, width, depth = model.n_vocab(), model.n_embd(), llama_cpp.llama_model_n_layer(model.model)

    def last():
        pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return numpy.ctypeslib.as_array(pointer, (vocabulary,)).copy()

    def prefill():
        model.reset()
        model.eval(tokens)
        return last()

    def steer(on):
        # A control vector for every layer but the first, of which only the middle one is not zero.
        vectors = numpy.zeros((depth - 1, width), numpy.float32)
        vectors[depth // 2 - 1] = [((i * 37 % 101) / 50.0 - 1.0) * 0.5 for i in range(width)] if on else 0.0
        data = vectors.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if depth < 2 or llama_cpp.llama_set_adapter_cvec(model.ctx, data, vectors.size, width, depth // 2, depth // 2) != 0:
            sys.exit("llama.cpp refused the control vector")

    logits = prefill()
    to_first = time.perf_counter() - start
    order = numpy.argsort(-logits)[:5]
    if name in ("steer", "steer_decode"):
        steer(True)

    def decode():
        token, new = int(prefill().argmax()), []
        begin = time.perf_counter()
        for _ in range(steps):
            new.append(token)
            model.eval([token])
            token = int(last().argmax())
        return (time.perf_counter() - begin) / steps, new + [token], []

    def timed():
        if steps:
            return decode()
        begin = time.perf_counter()
        made = prefill()
        seconds = time.perf_counter() - begin
        return seconds, [], model.scores[: len(tokens)].flatten() if name == "forward" else made

    memory, samples, decoded, made = dict(load=status("VmHWM")), [], [], []
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    for index in range(request["warmups"] + request["repeats"]):
        seconds, decoded, made = timed()
        if index >= request["warmups"]:
            samples.append(seconds)
    memory |= dict(run=status("VmHWM"), anonymous=status("RssAnon"), file=status("RssFile"), proportional=status("Pss", "/proc/self/smaps_rollup"))
    control = []
    if name == "steer":
        steer(False)
        control = [number(x) for x in prefill()[:COMPARED]]
    return dict(
        engine=f"llama-cpp-python {llama_cpp.__version__}", load_to_first_token_s=to_first, samples_s=samples,
        peak_bytes=max(memory["load"], memory["run"]), memory=memory, weight_bytes=llama_cpp.llama_model_size(model.model),
        top=[[int(i), number(logits[i])] for i in order], decoded=decoded, values=[number(x) for x in made[:COMPARED]], control=control)


try:
    answer = json.dumps(main())
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
with os.fdopen(answer_to, "w") as out:
    out.write(answer)
