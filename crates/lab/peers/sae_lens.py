"""The lab's worker for TransformerLens with SAELens, after `prelude.py` and `prelude_torch.py`: the job `splice` only."""
import importlib.metadata
from pathlib import Path

from sae_lens import SAE
from sae_lens.analysis.sae_transformer_bridge import SAETransformerBridge

# The rows of the job, as protocol.rs has them.
LENGTHS = [50, 87, 123, 160]


def saes(count):
    directories = sorted(Path(path, "saes").iterdir(), key=lambda directory: int(directory.name.split(".")[1]))
    for directory in directories[:count]:
        sae = SAE.load_from_disk(str(directory), dtype="float32")
        # Loading from a directory drops the metadata.
        sae.cfg.metadata.hook_name = json.loads((directory / "cfg.json").read_text())["metadata"]["hook_name"]
        yield sae


@torch.no_grad()
def main():
    if name != "splice":
        sys.exit(f"this worker runs the job `splice` only, not `{name}`")
    where, start = source(), time.perf_counter()
    wrapped = load(where, attn_implementation="eager")
    # Logits of the last position only, as on our side.
    wrapped.lm_head.register_forward_pre_hook(lambda module, inputs: (inputs[0][:, -1:],))
    model = SAETransformerBridge.boot_transformers(path, hf_model=wrapped, tokenizer=tokenizer_in_a_directory(), dtype=dtype, device="cpu")
    logits = model(ids)[-1, -1]
    to_first = time.perf_counter() - start
    for sae in saes(job["saes"]):
        model.add_sae(sae, use_error_term=False)
    texts = [ids[:, :length] for length in LENGTHS]

    def splice():
        # One text per pass: a padded batch computes more.
        return [model(text)[0, -1] for text in texts][-1]

    engine = f"sae-lens {importlib.metadata.version('sae-lens')}, transformer-lens {importlib.metadata.version('transformer-lens')}, "
    return answer_of(engine, to_first, logits, wrapped, timed_jobs(dict(splice=splice), None), lambda rows: [])


reply(main)
