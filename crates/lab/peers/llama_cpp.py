"""The lab's worker for llama.cpp through its Python binding, after `prelude.py`."""
import ctypes

import llama_cpp, numpy

if not path.endswith(".gguf"):
    sys.exit("llama.cpp reads GGUF files only: name one with --model")
if request["dtype"] != "auto":
    sys.exit(f"llama.cpp keeps weights as they are stored, not as {request['dtype']}: give its variant dtype = \"auto\"")
if name not in ("prefill", "forward", "decode", "steer", "steer_decode"):
    sys.exit(f"llama.cpp cannot do {name}: its interface neither shows nor changes activations, but for control vectors")
if len(rows) > 1:
    sys.exit("llama.cpp's binding for Python decodes one row at a time")


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
        vectors[depth // 2 - 1] = direction(width) if on else 0.0
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

    found, made = measured(timed)
    control = []
    if name == "steer":
        steer(False)
        control = [number(x) for x in prefill()[:COMPARED]]
    return found | dict(
        engine=f"llama-cpp-python {llama_cpp.__version__}", load_to_first_token_s=to_first, weight_bytes=llama_cpp.llama_model_size(model.model),
        top=[[int(i), number(logits[i])] for i in order], values=[number(x) for x in made[:COMPARED]], control=control)


reply(main)
