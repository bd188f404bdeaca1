"""Common code of the workers based on torch and transformers, after `prelude.py`."""
import atexit, shutil, tempfile

import torch, transformers
from transformers import AutoModelForCausalLM

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
if request.get("threads"):
    torch.set_num_threads(request["threads"])
dtype = {"auto": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[request["dtype"]]
ids, pair, batch = torch.tensor([tokens]), torch.tensor([tokens, tokens[::-1]]), torch.tensor(rows)


def source():
    """Returns the arguments of `from_pretrained` that name the model."""
    if not path.endswith(".gguf"):
        return dict(pretrained_model_name_or_path=path)
    file, size, changed = os.path.basename(path), os.path.getsize(path), int(os.path.getmtime(path))
    itself = dict(pretrained_model_name_or_path=os.path.dirname(path), gguf_file=file)
    if os.environ.get("PELLUCID_LAB_CONVERT") != "1":
        return itself
    # Reading GGUF takes half a minute. If loading is not measured, the file is converted to a
    # directory once.
    cache = os.environ.get("PELLUCID_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pellucid")
    kept = os.path.join(cache, "lab", "converted", f"{file}-{size}-{changed}")
    if not os.path.isdir(kept):
        made = AutoModelForCausalLM.from_pretrained(**itself, dtype=torch.float32)
        made.hf_quantizer = None  # the weights are dequantized by now
        made.config.__dict__.pop("quantization_config", None)
        made.save_pretrained(f"{kept}.{os.getpid()}")
        os.rename(f"{kept}.{os.getpid()}", kept)
    return dict(pretrained_model_name_or_path=kept)


def load(where, **more):
    return AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, **more).eval()


def flat(tensor):
    return [number(x) for x in tensor.detach().float().flatten()[:COMPARED].tolist()]


def dummy_tokenizer():
    """Returns a dummy tokenizer for libraries that require one; the lab sends token ids."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a", bos_token="b", eos_token="b", pad_token="b")


def tokenizer_in_a_directory():
    home = tempfile.mkdtemp()  # TransformerLens reloads the tokenizer from its directory
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    dummy_tokenizer().save_pretrained(home)
    return transformers.PreTrainedTokenizerFast.from_pretrained(home)


def timed_jobs(jobs, decode):
    """Returns a function that runs the job once: seconds, decoded tokens, output."""

    def timed():
        if "steps" in job:
            return decode(job["steps"])
        begin = time.perf_counter()
        made = jobs[name]()
        return time.perf_counter() - begin, [], made

    return timed


def answer_of(engine, to_first, logits, model, timed, prefill):
    """Builds the answer from the prompt's logits; `prefill` runs the job's input without its edit."""
    found, made = measured(timed)
    top_logits, order = logits.float().topk(5)
    plain = {"steer": ids, "ablate": ids, "patch": pair[1:]}.get(name)
    return found | dict(
        engine=f"{engine}torch {torch.__version__}", load_to_first_token_s=to_first, weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        top=[[int(i), number(v)] for i, v in zip(order, top_logits)], values=flat(made) if len(made) else [],
        control=flat(prefill(plain)) if plain is not None else [])


