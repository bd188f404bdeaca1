#!/usr/bin/env python3
"""Generates the golden cases: tiny random Hugging Face models with reference activations.

    generate.py OUT [case ...]       writes OUT/cases/<case>.safetensors (without names: every case)
    generate.py OUT fresh [--seed N] one case of every type with other weights and sizes
    generate.py --check [case ...]   regenerates them and compares with cases/ here
    generate.py --list               names of all cases

Needs Python 3.10+, torch, transformers, safetensors; no network. The cases are data in cases.py and
more.py.

A case is one file (case_file.py): its configuration, the manifest of its weights (weights.py) and
its reference, all f32 from an eager forward pass over one text of T tokens (ids, so there is no
tokenizer); D width, H heads, V vocabulary, E experts, <i> the layer:
  ids [T] i64, logits [T,V]          the text and its logits, after scale and soft cap
  short_logits [T-3,V]               the text without its first 3 tokens, run alone: the second row of a ragged batch
  greedy [8] i64                     greedy continuation by full recomputation, without special ids or near ties (by cached
                                     generation if RoPE depends on the length of the text)
  greedy_cached [8]                  only if transformers' cached generation disagrees
  resid_pre.0, resid_post.<i> [T,D]  the residual stream before the first layer, and after each (before the final norm)
  attn_probs.<i> [H,T,T]             attention probabilities
  router_logits.<i> [T,E]            router scores over all experts (MoE)
  mixer_out.<i> [T,D]                output of a recurrent or linear-attention mixer's projection
and, in the cases with `full` (cases.py):
  final_norm [T,D]                   output of the final norm, if there is one
  z.<i>, attn_out.<i>                input and output of attention's output projection
  mlp_act.<i>, mlp_out.<i>           input of the down projection (dense MLPs); output of the MLP or MoE block
  mixer_out_post.<i>, mlp_out_post.<i>  the contribution to the residual stream, if transformers computes only that
The models in STORED are also written as directories, OUT/models/<case>/, for the examples in the
documentation; a test compares their weights with the manifest.
"""
import argparse, json, math, os, re, shutil, sys, tempfile, traceback
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from dataclasses import replace
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
import case_file, weights
from cases import CASES, PER_TYPE, TINY
from fresh import FRESH, grown
from more import MORE, MORE_PER_TYPE, MORE_TINY

HERE = os.path.dirname(os.path.abspath(__file__))
NEW_TOKENS, SKIPPED = 8, 3
FIRST_ID, END_ID = 3, 93  # pad, bos and eos are below, image tokens above: excluded from texts and continuations
VARIETY = 4         # preferred number of distinct tokens in a continuation
MARGIN = 2e-3       # minimum lead of every greedy token over the second
MIN_SPREAD = 0.1    # minimum standard deviation of the logits; below it the model is degenerate
STORED = ("llama", "llama-sharded", "gpt2", "gpt_neox", "mixtral")
LEFT_OUT = {"doge-moe": "its router mixes positions (a reshape), so later tokens change earlier ones: no causal engine can reproduce it"}


# ---- the model -----------------------------------------------------------------------------------

def tiny_config(case):
    """The type's config with the tiny sizes for the fields it has, and the overrides of its type
    and case."""
    cls = CONFIG_MAPPING[case.model_type]
    known = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    values = {k: v for k, v in {**TINY, **MORE_TINY}.items() if k in known or (k == "rope_theta" and "rope_parameters" in known)}
    values |= PER_TYPE.get(case.model_type, {}) | MORE_PER_TYPE.get(case.model_type, {}) | case.config
    if case.grown: values = grown(case.model_type, values)
    if "rope_parameters" in values:
        values.pop("rope_theta", None)
    return cls(**{k: v for k, v in values.items() if v != "drop"})


# Parameters of recurrences: (mean, deviation) such that a state persists for several tokens and has
# an effect.
RECURRENT = {r"A_log": (-0.7, 0.5), r"dt_bias|dt_proj\.bias": (-0.5, 0.5), r"\.D$": (1, 0.3), r"recurrent_param": (-3, 0.8), r"lambda_": (0, 0.3),
         r"time_decay": (-1, 2.2), r"time_first": (-1, 0.5), r"time_mix": (0.5, 0.4)}
GAINS = re.compile(r"(norm|ln_|ln\d|layernorm|\.ln|_ln)[^.]*\.(weight|bias|gamma)$", re.I)


def rule(name, tensor, case, fixed, transposed):
    """Mean and deviation of a stored tensor, or its values. No tensor stays at one or zero, so that
    a forgotten bias, gain or router correction shows."""
    if name in fixed: return [weights.exact(tensor.float().numpy())]
    initial = tensor.flatten()[0].item() if tensor.numel() and (tensor == tensor.flatten()[0]).all() else round(tensor.float().mean().item())
    preset = next((m for pattern, m in RECURRENT.items() if re.search(pattern, name)), None)
    if preset: mean, deviation = preset
    elif GAINS.search(name): mean, deviation = initial, 0.3
    elif tensor.dim() >= 2: mean, deviation = 0, tensor.shape[0 if name in transposed else -1] ** -0.5
    else: mean, deviation = initial, 0.2
    factor = math.prod(f for pattern, f in case.boost.items() if re.search(pattern, name))
    return [weights.few_digits(mean * factor), weights.few_digits(deviation * factor)]


DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def build(case, d):
    """Writes config.json and the weights into `d` and loads the model from there; returns the model
    and its manifest."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(case), dtype=torch.float32, attn_implementation=case.attention).eval()
    transposed = {f"{n}.weight" for n, m in model.named_modules() if type(m).__name__ == "Conv1D"}  # [in, out]
    trained = dict(model.named_parameters())
    fixed = {n for n in model.state_dict() if n not in trained and not n.endswith("bias")}  # buffers that the architecture fixes
    model.to(getattr(torch, case.dtype)).save_pretrained(d, **({"max_shard_size": case.shards} if case.shards else {}))
    if os.path.exists(extra := os.path.join(d, "generation_config.json")): os.remove(extra)
    if case.legacy: legacy_config(os.path.join(d, "config.json"))
    files, state = {}, {}
    for file in sorted(f for f in os.listdir(d) if f.endswith(".safetensors")):
        old = load_file(os.path.join(d, file))
        files[file] = [[n, DTYPES[t.dtype], list(t.shape), *rule(n, t, case, fixed, transposed)] for n, t in sorted(old.items())]
        new = {line[0]: torch.from_numpy(weights.values(case.seed, line)).to(old[line[0]].dtype) for line in files[file]}
        save_file(new, os.path.join(d, file), metadata={"format": "pt"})
        state |= new
    again = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation=case.attention).eval()
    try: again(input_ids=torch.tensor([[FIRST_ID]]), use_cache=False)
    except NotImplementedError as e:  # TrOCR's sinusoids, which transformers computes only for a new model
        print(f"     transformers cannot load what it saved: {e}")
        again = AutoModelForCausalLM.from_config(tiny_config(case), dtype=torch.float32, attn_implementation=case.attention).eval()
        again.load_state_dict({**again.state_dict(), **state})
        again.tie_weights()
    return again, {"seed": case.seed, "files": files}


# ---- what is recorded ----------------------------------------------------------------------------

LAYERS = re.compile(r"(^|\.)(layers|layer|h|blocks)$")
FINAL_NORM = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "ln_out", "layer_norm", "layernorm", "embedding_norm", "final_norm")
ATTENTION = r"(^|\.)(self_attn|attn|self_attention|attention|multi_head_attention|temporal_block|mixer)"
ATTENTION_OUT = re.compile(ATTENTION + r"(\.\w+)*\.(o_proj|c_proj|(?<!mixer\.)out_proj|dense|wo|Wo)$")
MIXER_OUT = re.compile(r"(^|\.)(mamba|mixer|linear_attn|conv|temporal_block|attention)\.(out_proj|o_proj|linear_out|output)$")
MLP = re.compile(r"(^|\.)(mlp|block_sparse_moe|feed_forward|ffn|moe|mlp_block|mixer)$")
DOWN = re.compile(r"((^|\.)(mlp|feed_forward|ffn|mlp_block|mixer)\.(down_proj|c_proj|dense_4h_to_h|fc_out|fc2|w2|proj|Wo|wo|2)$)|^fc2$|^output\.dense$")
ROUTER = re.compile(r"(^|\.)(gate|router|router\.layer|gate\.wg)$")
ADDS_RESIDUAL = ("bloom", "mpt")  # their MLP modules add the residual, so the projection's output is recorded


def trunk(model):
    """The decoder's layer list and its final norm."""
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and LAYERS.search(n) and len(m) and "vision" not in n and "encoder.layers" not in n]
    name, layers = max(found, key=lambda f: (len(f[1]), -f[0].count(".")))
    parent = model.get_submodule(name.rpartition(".")[0])
    norm = next((getattr(parent, n) for n in FINAL_NORM if isinstance(getattr(parent, n, None), torch.nn.Module)), None)
    return layers, norm


def watch(model, T, record, slim):
    """Adds forward hooks that write into `record`; returns their handles."""
    handles, current = [], []  # current: the running layer, because some layers share modules
    def flat(x): return x.detach().reshape(T, -1).clone()
    def first(x): return x if torch.is_tensor(x) else x[0]
    def on_output(module, name, i=None, convert=lambda inputs, output: flat(first(output))):
        def hook(_, args, kwargs, output):
            inputs = args[0] if args else kwargs.get("hidden_states")
            if i is None or i == current[-1]: record[name if i is None else f"{name}.{i}"] = convert(inputs, output)
        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    def on_input(module, name, i): on_output(module, name, i, lambda inputs, _: flat(inputs))

    layers, norm = trunk(model)
    if norm is not None and not slim: on_output(norm, "final_norm")
    for i, layer in enumerate(layers):
        def entering(_, args, kwargs, i=i):
            current.append(i)
            if i == 0: record["resid_pre.0"] = flat(args[0] if args else kwargs["hidden_states"])
        handles.append(layer.register_forward_pre_hook(entering, with_kwargs=True))
        on_output(layer, "resid_post", i)
        modules = dict(layer.named_modules())
        def find(pattern, among=modules): return next((m for n, m in among.items() if pattern.search(n)), None)
        for n, m in modules.items():  # attention probabilities: the second output of an attention module
            if re.search(ATTENTION + r"(\.(self|attention))?$", n):
                on_output(m, "attn_probs", i, lambda _, out, i=i: probabilities(out, T, record.get(f"attn_probs.{i}")))
        mlp, down = find(MLP), find(DOWN)
        inside = dict(mlp.named_modules()) if mlp is not None else {}
        router = next((m for n, m in inside.items() if ROUTER.search(n) and getattr(m, "weight", None) is not None and m.weight.dim() == 2), None)
        if any(n.split(".")[-1] in ("experts", "input_linear") for n in inside) and router is not None:
            down = None  # a sparse layer has no single set of neurons
            on_output(router, "router_logits", i, lambda x, _, r=router: flat(torch.nn.functional.linear(x.reshape(T, -1).float(), r.weight.float(), getattr(r, "bias", None))))
        elif "experts" not in inside and "mixer" in modules and down is None: mlp = None  # a mixer that is not an MLP
        if (shared := modules.get("shared_mlp")) is not None and shared is not mlp: on_output(shared, "shared_out", i)
        if (projection := find(ATTENTION_OUT)) is not None: on_output(projection, "attn_out", i), on_input(projection, "z", i)
        if (projection := find(MIXER_OUT)) is not None: on_output(projection, "mixer_out", i)
        if down is not None: on_input(down, "mlp_act", i)
        whole = down if mlp is None or model.config.model_type in ADDS_RESIDUAL else mlp
        if whole is not None: on_output(whole, "mlp_out", i)
    return handles


# ---- definitions ---------------------------------------------------------------------------------

def dropped(point):
    def change(record, model, i): record.pop(f"{point}.{i}", None)
    return change


def renamed(point, to):
    def change(record, model, i):
        if f"{point}.{i}" in record: record[f"{to}.{i}"] = record.pop(f"{point}.{i}")
    return change


def heads_by_key(record, model, i):
    if (probs := record.get(f"attn_probs.{i}")) is None: return
    chosen, (_, T, _) = model.config.num_experts_per_tok, probs.shape
    record[f"attn_probs.{i}"] = probs.reshape(chosen, -1, T, T).transpose(0, 1).reshape(-1, T, T)


def shared_added(record, model, i):
    if (shared := record.pop(f"shared_out.{i}", None)) is not None: record[f"mlp_out.{i}"] = record.get(f"mlp_out.{i}", 0) + shared


def sparse_after_norm(record, model, i):
    if f"router_logits.{i}" in record: renamed("mlp_out", "mlp_out_post")(record, model, i)


def bias_added(record, model, i):
    bias = trunk(model)[0][i].attention.dense_bias
    if bias is not None and f"attn_out.{i}" in record: record[f"attn_out.{i}"] += bias


def capped(record, model, i):
    if (cap := model.config.moe_router_logit_softcapping) > 0 and f"router_logits.{i}" in record:
        record[f"router_logits.{i}"] = torch.tanh(record[f"router_logits.{i}"] / cap) * cap


def rwkv_stream(record, model, i):
    every = model.config.rescale_every
    if i == 0: record["resid_pre.0"] = trunk(model)[0][0].pre_ln(record["resid_pre.0"])
    if every > 0 and (i + 1) % every == 0: record[f"resid_post.{i}"] /= 2
    if 0 < every < model.config.num_hidden_layers:
        for point in ("mixer_out", "mlp_out"): renamed(point, f"{point}_post")(record, model, i)


# If a hook on a transformers module sees a different tensor than the site means: types, correction
# in every layer, reason.
ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
DEFINITIONS = [
    (("granite_swa", "granitemoe_swa"), dropped("attn_probs"), "the returned weights do not account for the attention sink"),
    (("jetmoe",), heads_by_key, "heads are ordered by expert slot; the site orders them by key head, then slot"),
    (("granitemoeshared", "granitemoe_swa", "granitemoehybrid"), shared_added, "the experts' module does not contain the shared MLP"),
    (("axk1",), sparse_after_norm, "the module of a sparse layer includes its post-norm"),
    (("gpt_neox_japanese",), bias_added, "the last layer's bias is added outside the projection"),
    (("laguna",), capped, "the router's scores are soft-capped after its matmul"),
    (ENCODERS, dropped("mixer_out"), "`attention.output` is the sublayer with its residual and norm, not a mixer"),
    (("rwkv",), rwkv_stream, "block 0 normalizes the embeddings; the model halves the residual stream between blocks, and the sublayer outputs, too"),
]


def apply_definitions(record, model):
    """Applies DEFINITIONS, and names each projection: attention's if there are attention
    probabilities, else a mixer's."""
    for i in {k.split(".")[1] for k in record if "." in k}:
        hidden = model.config._attn_implementation != "eager"  # attention that does not return its probabilities
        if record.get(f"attn_probs.{i}") is None and f"attn_out.{i}" in record and not hidden:
            record[f"mixer_out.{i}"] = record.pop(f"attn_out.{i}"); record.pop(f"z.{i}")
        elif f"attn_out.{i}" in record and torch.equal(record[f"attn_out.{i}"], record.get(f"mixer_out.{i}", torch.zeros(0))):
            del record[f"mixer_out.{i}"]
        for types, change, _ in DEFINITIONS:
            if model.config.model_type in types: change(record, model, int(i))


def probabilities(output, T, earlier):
    for x in output[1:] if isinstance(output, (tuple, list)) else ():
        if torch.is_tensor(x) and x.dim() == 4 and x.shape[-2:] == (T, T): return x[0].detach().clone()
    return earlier


def rope_depends_on_length(model):
    """Whether RoPE angles of earlier positions depend on the length of the text. Then the reference
    for decoding is cached generation, which differs from recomputation."""
    return any(kind in str(getattr(model.config, "rope_parameters", "")) for kind in ("dynamic", "longrope"))


def reset_rope(model):
    """Dynamic RoPE remembers the longest text; a short one resets it."""
    if "dynamic" in str(getattr(model.config, "rope_parameters", "")): model(input_ids=torch.tensor([[FIRST_ID]]), use_cache=False)


def logits_of(model, ids):
    eager = model.config._attn_implementation == "eager"
    return model(input_ids=ids[None], use_cache=False, **({"output_attentions": True} if eager else {})).logits[0]


def continuation(model, ids):
    """Returns the greedy tokens by recomputation, and the smallest lead of a top token over the
    second."""
    seq, margin = ids, float("inf")
    reset_rope(model)
    for _ in range(NEW_TOKENS):
        top = logits_of(model, seq)[-1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        seq = torch.cat([seq, top.indices[:1]])
    return seq[len(ids):], margin


def text_for(model, case, vocabulary):
    """A random text with a clear and varied greedy continuation that avoids the special ids."""
    best, variety = None, 0
    for seed in range(2, 22):
        ids = torch.randint(FIRST_ID, min(END_ID, vocabulary), (case.tokens,), generator=torch.Generator().manual_seed(seed))
        greedy, margin = continuation(model, ids)
        if margin > MARGIN and FIRST_ID <= greedy.min() and greedy.max() < END_ID and len(greedy.unique()) > variety:
            best, variety = (ids, greedy), len(greedy.unique())
            if variety >= VARIETY: break
    return best


def reference(model, case):
    config = model.config.get_text_config()
    if (found := text_for(model, case, config.vocab_size)) is None: return None  # unsuitable weights
    ids, greedy = found
    out = dict(ids=ids, greedy=greedy)
    reset_rope(model)
    handles = watch(model, len(ids), out, not case.full)
    out["logits"] = logits_of(model, ids)
    for h in handles: h.remove()
    apply_definitions(out, model)
    reset_rope(model)
    out["short_logits"] = logits_of(model, ids[SKIPPED:])
    plain = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)  # no eos, no forced tokens
    model.generation_config = plain
    try:
        cached = model.generate(input_ids=ids[None], attention_mask=torch.ones(1, len(ids), dtype=torch.long), generation_config=plain)[0, len(ids):]
        if not torch.equal(cached, greedy): out["greedy" if rope_depends_on_length(model) else "greedy_cached"] = cached
    except Exception as e:
        print(f"     cached generation does not run: {type(e).__name__}: {str(e)[:100]}")
    if (spread := out["logits"].std().item()) < MIN_SPREAD: raise ValueError(f"degenerate: logits std {spread:.3f}")
    if case.tokens > 40: out = {k: v for k, v in out.items() if not k.startswith("attn_probs")}  # large
    is_recorded = lambda k: case.full or k.split(".")[0] not in ("attn_out", "z", "mlp_act", "mlp_out", "mlp_out_post", "mixer_out_post", "final_norm")
    return {k: v.contiguous() for k, v in out.items() if v is not None and is_recorded(k)}


# ---- files ---------------------------------------------------------------------------------------

def legacy_config(file):
    """Rewrites config.json as transformers 4 wrote it, as in nearly all published models."""
    c = json.load(open(file))
    ropes = c.pop("rope_parameters")
    local, full = (ropes["sliding_attention"], ropes["full_attention"]) if "full_attention" in ropes else (None, ropes)
    c["rope_theta"] = full.pop("rope_theta")
    c["rope_scaling"] = full if full["rope_type"] != "default" else None
    if local:  # the Gemma 3 form: a period instead of a list
        c["rope_local_base_freq"], c["sliding_window_pattern"] = local["rope_theta"], c.pop("layer_types").index("full_attention") + 1
        del c["_sliding_window_pattern"]
    c["torch_dtype"] = c.pop("dtype")
    json.dump(c, open(file, "w"), indent=2, sort_keys=True)


def make(name, case, out):
    d = tempfile.mkdtemp()
    try:
        for case in (replace(case, seed=case.seed + 100 * attempt) for attempt in range(6)):
            for f in os.listdir(d): os.remove(os.path.join(d, f))
            model, manifest = build(case, d)
            with torch.no_grad(): ref = reference(model, case)
            if ref: break
        else: raise ValueError("no text with a clear continuation")
        os.makedirs(os.path.join(out, "cases"), exist_ok=True)
        path = case_path(out, name)
        # gradients.py adds the gradients after the case; keep them.
        old = case_file.read(path)[2] if os.path.exists(path) else {}
        gradients = {k: v for k, v in old.items() if k not in case_file.reference(old)}
        case_file.write(path, json.load(open(os.path.join(d, "config.json"))), manifest, ref | gradients)
        if name in STORED: shutil.copytree(d, os.path.join(out, "models", name), dirs_exist_ok=True)
    finally: shutil.rmtree(d)
    points = sorted({k.split(".")[0] for k in ref} - {"ids", "logits", "short_logits", "greedy"})
    print(f"ok   {name:28} {type(model).__name__:32} {os.path.getsize(path) // 1024:4} KB  logits std {ref['logits'].std():.3f}  {' '.join(points)}", flush=True)


def case_path(out, name): return os.path.join(out, "cases", f"{name}.safetensors")


def differences(old, new):
    """Yields the differences between two files of the same case."""
    if not os.path.exists(old): return (yield "it is not committed")
    (old_config, old_weights, old), (new_config, new_weights, new) = case_file.read(old), case_file.read(new)
    x, y = ({k: v for k, v in config.items() if k != "transformers_version"} for config in (old_config, new_config))
    if x != y: yield f"config: {sorted(k for k in x.keys() | y.keys() if x.get(k) != y.get(k))}"
    if old_weights != new_weights: yield "weights: the manifest differs"
    x, y = case_file.reference(old), case_file.reference(new)  # gradients.py compares its own
    if x.keys() != y.keys(): yield f"tensors {sorted(x.keys() ^ y.keys())}"
    for k in sorted(x.keys() & y.keys()):
        if x[k].shape != y[k].shape or x[k].dtype != y[k].dtype: yield f"{k} has another shape or dtype"
        elif (worst := (x[k].double() - y[k].double()).abs().max().item()) > 2e-5: yield f"{k} off by {worst:.2g}"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", nargs="?"); ap.add_argument("cases", nargs="*")
    ap.add_argument("--check", action="store_true"); ap.add_argument("--list", action="store_true"); ap.add_argument("--seed", type=int, default=1, help="of fresh"); ap.add_argument("--trace", action="store_true", help="full tracebacks of failures")
    a = ap.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar()
    if weights.known_bits() != weights.KNOWN_BITS: sys.exit("weights.py does not give the expected bits")
    known = {name: case for name, case in {**CASES, **MORE}.items() if name not in LEFT_OUT}
    if a.list: return print("\n".join(known))
    if a.check: a.cases, a.out = ([a.out] if a.out else []) + a.cases, tempfile.mkdtemp()
    if not a.out: ap.error("OUT is missing")
    failed = []
    if a.cases[:1] == ["fresh"]:
        known = {c.model_type: replace(c, config=FRESH.get(c.model_type, {}), seed=a.seed, grown=True, full=True) for n, c in known.items() if n == c.model_type}
        a.cases = a.cases[1:]
    for name in a.cases or list(known):
        try:
            make(name, known[name], a.out)
            if a.check: failed += [f"{name}: {d}" for d in differences(case_path(HERE, name), case_path(a.out, name))]
        except Exception as e:
            failed.append(f"{name}: {type(e).__name__}: {str(e)[:300]}"); print("BAD ", failed[-1], flush=True)
            if a.trace: traceback.print_exc()
    if a.check: shutil.rmtree(a.out)
    print("\n".join(["", f"{len(failed)} failures, transformers {transformers.__version__}, torch {torch.__version__}", *failed]))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
