"""The lab's worker for llama.cpp; `prelude.py` is prepended. It calls the C API: the class `Llama`
decodes only one row and disables some of the library's defaults."""
import ctypes

import llama_cpp, numpy

if not path.endswith(".gguf"):
    sys.exit("llama.cpp reads GGUF files only: give one with --model")
if request["dtype"] != "auto":
    sys.exit(f"llama.cpp uses weights as stored, not as {request['dtype']}: set dtype = \"auto\" for its variant")
if name not in ("prefill", "forward", "decode", "steer", "steer_decode"):
    sys.exit(f"llama.cpp cannot do {name}: its API exposes no activations and edits them only by control vectors")


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    pass


def main():
    llama_cpp.llama_log_set(quiet, None)
    start = time.perf_counter()
    steps, everywhere = job.get("steps", 0), name == "forward"
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot read {path}")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    width, depth = llama_cpp.llama_model_n_embd(model), llama_cpp.llama_model_n_layer(model)
    params, prompts = llama_cpp.llama_context_default_params(), len(rows) * len(tokens)
    # Each row has its own KV cache, whose length the library rounds up to 256.
    params.n_ctx, params.n_seq_max = len(rows) * -(-(len(tokens) + steps) // 256) * 256, len(rows)
    params.n_batch = max(512, prompts)
    params.n_threads = params.n_threads_batch = request.get("threads") or os.cpu_count()
    context, batch = llama_cpp.llama_init_from_model(model, params), llama_cpp.llama_batch_init(prompts, 0, 1)
    if not context:
        sys.exit(f"llama.cpp cannot allocate a context for {len(rows)} rows of {len(tokens) + steps} tokens")

    def evaluate(rows, position):
        """Feeds tokens at `position`; returns the logits of each row's last token, or of all tokens."""
        batch.n_tokens, indices = 0, []
        for row, new in enumerate(rows):
            for offset, token in enumerate(new):
                at = batch.n_tokens
                batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0] = token, position + offset, 1, row
                batch.logits[at] = everywhere or offset == len(new) - 1
                indices += [at] * batch.logits[at]
                batch.n_tokens += 1
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama.cpp refused the batch")
        return [numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (vocabulary,)) for at in indices]

    def prefill(rows=[tokens]):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        return evaluate(rows, 0)

    def steer(on):
        # One control vector per layer except the first; only the middle one is nonzero.
        vectors = numpy.zeros((depth - 1, width), numpy.float32)
        vectors[depth // 2 - 1] = direction(width) if on else 0.0
        data = vectors.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if depth < 2 or llama_cpp.llama_set_adapter_cvec(context, data, vectors.size, width, depth // 2, depth // 2) != 0:
            sys.exit("llama.cpp refused the control vector")

    logits = prefill()[-1].copy()
    to_first = time.perf_counter() - start
    order = numpy.argsort(-logits)[:5]
    if name in ("steer", "steer_decode"):
        steer(True)

    def decode():
        argmax_tokens = lambda logits: [int(row.argmax()) for row in logits]
        new, of_first = argmax_tokens(prefill(rows)), []
        begin = time.perf_counter()
        for step in range(steps):
            of_first.append(new[0])
            new = argmax_tokens(evaluate([[token] for token in new], len(tokens) + step))
        return (time.perf_counter() - begin) / steps, of_first + new[:1], []

    def timed():
        if steps:
            return decode()
        begin = time.perf_counter()
        made = prefill()
        seconds = time.perf_counter() - begin
        return seconds, [], numpy.concatenate(made)

    found, made = measured(timed)
    control = []
    if name == "steer":
        steer(False)
        control = [number(x) for x in prefill()[-1][:COMPARED]]
    return found | dict(
        engine=f"llama-cpp-python {llama_cpp.__version__}", load_to_first_token_s=to_first, weight_bytes=llama_cpp.llama_model_size(model),
        top=[[int(i), number(logits[i])] for i in order], values=[number(x) for x in made[:COMPARED]], control=control)


reply(main)
