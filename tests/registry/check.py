"""Holds what `pellucid inspect` says of every configuration type of `transformers` beside what its model classes say of themselves.

    python tests/registry/check.py target/debug/pellucid

For each type whose configuration can be made, a directory with its config.json is inspected, with the type's first class named in it. The expected
category comes from the class: whether it can generate, and what it takes in and gives out (`input_modalities`, `output_modalities`,
`main_input_name`). The expected tier is native exactly where Pellucid's table of families has the type. Prints the figures and every difference that nobody
has judged; where the class itself says too little, the type is listed apart. Differences that are meant are in INTENDED, by their reason. Ends with code 1 if one is
not there, or if one of those is none any more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import transformers
from transformers.models.auto import configuration_auto, modeling_auto

REPOSITORY = Path(__file__).resolve().parents[2]
# Types whose category is meant to be another than their class claims, by the reason.
INTENDED = {
    "a bare encoder of text makes vectors; its class says only that it takes text and cannot generate": """albert bros canine clip_text_model convbert
        deberta deberta-v2 distilbert dpr embedding_gemma2_text esm esmc eurobert flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm lilt longformer luke
        markuplm mobilebert modernbert mpnet mra nomic_bert nystromformer splinter squeezebert tapas tipsv2_text_model ultrabert yoso""",
    "text and pages or images become vectors to compare and search by; that images are among them makes no vision encoder of it": """colmodernvbert
        colpali colqwen2 embedding_gemma2 layoutlmv2 layoutlmv3 modernvbert neomme t5gemma2_encoder ultravbert""",
    "the text tower of a model that compares texts with images, which inherits that model's inputs": "sam3_lite_text_text_model",
    "the first list of audio encoders has Wav2Vec2ForCTC in it: an encoder with a layer of letters on top, known as an audio encoder": """data2vec-audio hubert
        sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm""",
    "made to write down speech; its class takes ids first because a language model writes": """fun_asr_nano glmasr granite_speech granite_speech_plus
        kyutai_speech_to_text moss_transcribe_diarize nemo_speechlm nemotron3_5_transcribe_word_timestamp qwen3_asr speech-encoder-decoder vibevoice_asr
        voxtral_realtime whisper""",
    "hears: a tower of sound, a model that compares sound, or half of a codec; its class names no inputs": """clap gemma3n_audio mimi_decoder pe_audio
        pe_audio_video pocket_tts_audio_tokenizer_decoder""",
    "sees; its class names no inputs, or those of text": "exaone4_5_vision pe_video",
    "the part that writes text, whose class inherits the inputs of the whole": "mistral_large4_text molmo2_text",
    "writes something else than text with a language model's trunk: images (glm_image), a robot's actions (pi0)": "glm_image pi0",
    "takes anything; the classes with an image head are vision encoders": "perceiver",
    "omni: the type gives images or speech besides text, its first class only text": "emu3 moshi",
    "omni: the thinking half of a model that speaks": "qwen2_5_omni_thinker qwen3_omni_moe_thinker",
    "omni: called so by its makers, because it takes in everything; it gives text": "cosmos3_omni nemotron_h_omni",
}
# Types of another tier than the table of families says, by the reason.
INTENDED_TIERS = {
    "an encoder unless its configuration says `is_decoder`, and only then a language model": "bert camembert electra roberta xlm-roberta",
    "read as gpt2, which it is": "gpt-sw3",
}
ORDER = ["MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_CTC"]


def first_class(kind):
    """The class that a checkpoint of the type would most likely name, and the tasks of the type."""
    tables = {name: table for name, table in vars(modeling_auto).items() if name.endswith("_NAMES") and name != "CONFIG_MAPPING_NAMES"}
    tasks = [name for name, table in tables.items() if kind in table]
    ranked = sorted(tasks, key=lambda name: ORDER.index(name.removesuffix("_MAPPING_NAMES")) if name.removesuffix("_MAPPING_NAMES") in ORDER else 99)
    if not ranked:
        return None
    entry = tables[ranked[0]][kind]
    return entry if isinstance(entry, str) else entry[0]


def expected(kind, name):
    """The category that a class claims for itself, and whether it gives several kinds of output; nothing where it does not say."""
    model = getattr(transformers, name, None) if name else None
    try:
        takes = set(getattr(model, "input_modalities", None) or ())
    except ImportError:  # a class of an optional library
        return None, None
    if model is None:
        return None, None
    gives = set(getattr(model, "output_modalities", None) or ())
    omni = len(gives) > 1
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    generates = model.can_generate()
    if main in ("input_features", "input_values") or takes == {"audio"}:
        heard = generates or any(name.endswith(end) for end in ("ForCTC", "ForTDT", "ForRNNT"))
        return ("asr" if heard else "audio_encoder"), omni
    if generates:
        return "transformers", omni
    if main.startswith("pixel_values") or takes & {"image", "video"}:
        return "vision_encoder", omni
    return "transformers", omni


def native():
    """The types of the table of families."""
    text = (REPOSITORY / "crates/models/src/families/mod.rs").read_text()
    table = text[text.index("const FAMILIES") : text.index("];", text.index("const FAMILIES"))]
    return {line.split('"')[1] for line in table.splitlines() if '("' in line}


def judged(found, reasons):
    """The differences that nobody has judged, and the judged types that do not differ."""
    meant = {kind for kinds in reasons.values() for kind in kinds.split()}
    return [line for kind, line in found.items() if kind not in meant], sorted(meant - set(found))


def main():
    binary, families = sys.argv[1], native()
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as root:
        for kind in sorted(configuration_auto.CONFIG_MAPPING_NAMES):
            name = first_class(kind)
            try:
                config = configuration_auto.CONFIG_MAPPING[kind]()
                if name:
                    config.architectures = [name]
                directory = Path(root) / kind
                config.save_pretrained(directory)
            except Exception as problem:  # every kind of failure of another library's constructors
                failed.append(f"{kind}: {type(problem).__name__}")
                continue
            rows.append((kind, name, directory))

        def look(row):
            answer = subprocess.run([binary, "inspect", "--json", row[2]], capture_output=True, text=True, check=True)
            return json.loads(answer.stdout)

        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(look, [row for row in rows]))
    wrong, silent, tiers, counts = {}, [], {}, Counter()
    for (kind, name, _), report in zip(rows, reports, strict=True):
        category, omni = expected(kind, name)
        counts[report["category"], report["support"]] += 1
        tier = "native" if kind in families else "inspect-only"
        if report["support"] != tier:
            tiers[kind] = f"{kind} ({name}): {report['support']}, table says {tier}: {report['reason']}"
        line = f"{kind} ({name}): {report['category']}{' omni' * report['modalities']['omni']}, class says {category}{' omni' * bool(omni)}"
        if category is None:
            silent.append(line)
        elif (category, bool(omni)) != (report["category"], report["modalities"]["omni"]):
            wrong[kind] = line
    print(f"{len(rows)} types inspected, {len(failed)} cannot be made without arguments: {', '.join(failed)}")
    for (category, tier), count in sorted(counts.items()):
        print(f"  {category:16}{tier:14}{count}")
    (new_tiers, no_tiers), (new, none) = judged(tiers, INTENDED_TIERS), judged(wrong, INTENDED)
    print(f"{len(tiers)} tiers and {len(wrong)} categories differ")
    lists = [("tier differs, not judged", new_tiers), ("category differs, not judged", new)]
    lists += [("judged, but does not differ", no_tiers + none), ("no class to ask", silent)]
    for title, lines in lists:
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")
    sys.exit(1 if new_tiers or new or no_tiers or none else 0)


if __name__ == "__main__":
    main()
