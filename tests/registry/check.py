"""Compares `pellucid inspect` with the model classes of `transformers`, for every model type.

    python tests/registry/check.py target/debug/pellucid

For each type with a default configuration, inspects a directory with its config.json, which names
the type's first class. The expected category follows from the class: whether it can generate, and
its inputs and outputs (`input_modalities`, `output_modalities`, `main_input_name`). The expected
tier is native exactly for the types in Pellucid's table of families. Intended differences are
listed in INTENDED and INTENDED_TIERS, by reason. Prints counts, the other differences, and the
types whose class has no such attributes. Exits with 1 if there is a difference that is not listed,
or a listed one that does not exist any more.
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
# Types whose category intentionally differs from that of their class, by reason.
INTENDED = {
    "a text encoder gives embeddings; its class says only that it takes text and cannot generate": """albert bros canine clip_text_model convbert
        deberta deberta-v2 distilbert dpr embedding_gemma2_text esm esmc eurobert flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm lilt longformer luke
        markuplm mobilebert modernbert mpnet mra nomic_bert nystromformer splinter squeezebert tapas tipsv2_text_model ultrabert yoso""",
    "embeddings of text and pages or images for retrieval; image inputs do not make it a vision encoder": """colmodernvbert
        colpali colqwen2 embedding_gemma2 layoutlmv2 layoutlmv3 modernvbert neomme t5gemma2_encoder ultravbert""",
    "the text tower of a model that compares texts with images; it inherits that model's inputs": "sam3_lite_text_text_model",
    "Wav2Vec2ForCTC and similar classes, encoders with a CTC head, count as audio encoders": """data2vec-audio hubert
        sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm""",
    "speech recognition; the main input of its class is ids, because a language model generates the text": """fun_asr_nano glmasr granite_speech granite_speech_plus
        kyutai_speech_to_text moss_transcribe_diarize nemo_speechlm nemotron3_5_transcribe_word_timestamp qwen3_asr speech-encoder-decoder vibevoice_asr
        voxtral_realtime whisper""",
    "audio tower, audio comparison, or half of a codec; its class names no inputs": """clap gemma3n_audio mimi_decoder pe_audio
        pe_audio_video pocket_tts_audio_tokenizer_decoder""",
    "vision; its class names no inputs, or text inputs": "exaone4_5_vision pe_video",
    "the text part of a multimodal model; its class inherits the inputs of the whole": "mistral_large4_text molmo2_text",
    "the backbone of a language model with other outputs: images (glm_image), robot actions (pi0)": "glm_image pi0",
    "any input; the classes with an image head are vision encoders": "perceiver",
    "omni: the type outputs images or speech as well as text, its first class only text": "emu3 moshi",
    "omni: the thinker of a model with speech output": "qwen2_5_omni_thinker qwen3_omni_moe_thinker",
    "omni: its authors call it so because it takes every modality; it outputs text": "cosmos3_omni nemotron_h_omni",
}
# Types whose tier intentionally differs from the table of families, by reason.
INTENDED_TIERS = {
    "a language model only if its configuration sets `is_decoder`, else an encoder": "bert camembert electra roberta xlm-roberta",
    "an alias of gpt2": "gpt-sw3",
}
ORDER = ["MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_CTC"]


def first_class(kind):
    """The class that a checkpoint of the type most likely names."""
    tables = {name: table for name, table in vars(modeling_auto).items() if name.endswith("_NAMES") and name != "CONFIG_MAPPING_NAMES"}
    tasks = [name for name, table in tables.items() if kind in table]
    ranked = sorted(tasks, key=lambda name: ORDER.index(name.removesuffix("_MAPPING_NAMES")) if name.removesuffix("_MAPPING_NAMES") in ORDER else 99)
    if not ranked:
        return None
    entry = tables[ranked[0]][kind]
    return entry if isinstance(entry, str) else entry[0]


def expected(kind, name):
    """The category that a class claims, and whether it has several output modalities; None if it
    does not say."""
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
        recognizes_speech = generates or any(name.endswith(end) for end in ("ForCTC", "ForTDT", "ForRNNT"))
        return ("asr" if recognizes_speech else "audio_encoder"), omni
    if generates:
        return "transformers", omni
    if main.startswith("pixel_values") or takes & {"image", "video"}:
        return "vision_encoder", omni
    return "transformers", omni


def native():
    """The types in the table of families."""
    text = (REPOSITORY / "crates/models/src/families/mod.rs").read_text()
    table = text[text.index("const FAMILIES") : text.index("];", text.index("const FAMILIES"))]
    return {line.split('"')[1] for line in table.splitlines() if '("' in line}


def unexpected(found, reasons):
    """Returns the differences that are not listed as intended, and the listed types that do not
    differ."""
    intended = {kind for kinds in reasons.values() for kind in kinds.split()}
    return [line for kind, line in found.items() if kind not in intended], sorted(intended - set(found))


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
            except Exception as problem:  # constructors of another library may raise anything
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
    print(f"{len(rows)} types inspected, {len(failed)} have no default configuration: {', '.join(failed)}")
    for (category, tier), count in sorted(counts.items()):
        print(f"  {category:16}{tier:14}{count}")
    (new_tiers, no_tiers), (new, none) = unexpected(tiers, INTENDED_TIERS), unexpected(wrong, INTENDED)
    print(f"{len(tiers)} tiers and {len(wrong)} categories differ")
    lists = [("tier differs, not listed", new_tiers), ("category differs, not listed", new)]
    lists += [("listed, but does not differ", no_tiers + none), ("no class attributes", silent)]
    for title, lines in lists:
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")
    sys.exit(1 if new_tiers or new or no_tiers or none else 0)


if __name__ == "__main__":
    main()
