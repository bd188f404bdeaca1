"""The peer of `lab capture` for llama.cpp, after `prelude.py`: all requests as parallel sequences of one context,
prompts first, then one token of every unfinished sequence per call. No captures: its API exposes no activations."""
import llama_cpp, numpy

prompts, new_tokens = request["prompts"], request["new_tokens"]
# Tokens per call while reading prompts; the library splits them further.
BATCH = 2048
if not path.endswith(".gguf"):
    sys.exit("llama.cpp reads GGUF files only: give one with --model")


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    pass


def main():
    llama_cpp.llama_log_set(quiet, None)
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot read {path}")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    longest = max(len(prompt) + new for prompt, new in zip(prompts, new_tokens))
    # Each sequence has its own KV cache, whose length the library rounds up to 256.
    params.n_ctx, params.n_seq_max = len(prompts) * -(-longest // 256) * 256, len(prompts)
    params.n_batch = BATCH
    params.n_threads = params.n_threads_batch = request.get("threads") or os.cpu_count()
    context, batch = llama_cpp.llama_init_from_model(model, params), llama_cpp.llama_batch_init(BATCH, 0, 1)
    if not context:
        sys.exit(f"llama.cpp cannot allocate a context for {len(prompts)} sequences of {longest} tokens")
    resident = status("VmRSS")

    def evaluate(parts):
        """Feeds (sequence, position, token, wants logits); returns the next token of each that wants logits."""
        chosen = {}
        for first in range(0, len(parts), BATCH):
            part, wanted = parts[first : first + BATCH], []
            batch.n_tokens = len(part)
            for at, (sequence, position, token, logits) in enumerate(part):
                batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0] = token, position, 1, sequence
                batch.logits[at] = logits
                wanted += [(at, sequence)] * logits
            if llama_cpp.llama_decode(context, batch) != 0:
                sys.exit("llama.cpp refused the batch")
            for at, sequence in wanted:
                row = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (vocabulary,))
                chosen[sequence] = int(row.argmax())
        return chosen

    def iteration():
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        begin, cpu = time.perf_counter(), time.process_time()
        parts = [(s, i, token, i + 1 == len(prompt)) for s, prompt in enumerate(prompts) for i, token in enumerate(prompt)]
        tokens = {sequence: [token] for sequence, token in evaluate(parts).items()}
        while True:
            going = [s for s in tokens if len(tokens[s]) < new_tokens[s]]
            if not going:
                break
            for sequence, token in evaluate([(s, len(prompts[s]) + len(tokens[s]) - 1, tokens[s][-1], True) for s in going]).items():
                tokens[sequence].append(token)
        return time.perf_counter() - begin, time.process_time() - cpu, [tokens[s] for s in range(len(prompts))]

    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    iterations, total = [], sum(map(len, prompts)) + sum(new_tokens)
    for index in range(request["iterations"]):
        generation, cpu, tokens = iteration()
        iterations.append(dict(iteration=index + 1, generation_time=generation, fetch_time=0.0, total_time=generation, throughput_tokens_per_sec=total / generation, process=1, cpu_time=cpu, max_concurrency=len(prompts)))
    return dict(engine=f"llama-cpp-python {llama_cpp.__version__}", iterations=iterations, tokens=tokens, captured_bytes=0, peak_bytes=status("VmHWM"), resident_bytes=resident, sample=[])


reply(main)
