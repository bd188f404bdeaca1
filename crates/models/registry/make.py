"""Generates the registry of the installed `transformers`: types.tsv (configuration types) and classes.tsv (model classes).

    python crates/models/registry/make.py

A line of types.tsv: type, category, marks, parts. Marks: `c` causal, `o` omni. Parts are the keys of nested configurations.
A line of classes.tsv: class, category, type. Both are sorted by the first column, case-insensitively, with `-` equal to `_`.
The category follows from the tasks that a type is registered for; the tables below override it where that is wrong or missing.
"""

import re
import sys
from pathlib import Path

import transformers
from transformers.models.auto import configuration_auto, modeling_auto

VISION = """IMAGE IMAGE_CLASSIFICATION MASKED_IMAGE_MODELING CAUSAL_IMAGE_MODELING IMAGE_SEGMENTATION SEMANTIC_SEGMENTATION
    INSTANCE_SEGMENTATION UNIVERSAL_SEGMENTATION VIDEO_CLASSIFICATION OBJECT_DETECTION ZERO_SHOT_OBJECT_DETECTION
    ZERO_SHOT_IMAGE_CLASSIFICATION DEPTH_ESTIMATION BACKBONE MASK_GENERATION KEYPOINT_DETECTION KEYPOINT_MATCHING
    IMAGE_TO_IMAGE IMAGE_MATTING NORMAL_ESTIMATION POINTMAP_ESTIMATION POSE_ESTIMATION TEXT_RECOGNITION
    TABLE_RECOGNITION""".split()
AUDIO = "AUDIO_CLASSIFICATION AUDIO_FRAME_CLASSIFICATION AUDIO_XVECTOR AUDIO_TOKENIZATION".split()
ASR_TASKS = "CTC RNNT TDT".split()
TEXT_OUTPUT = "CAUSAL_LM IMAGE_TEXT_TO_TEXT MULTIMODAL_LM SEQ_TO_SEQ_CAUSAL_LM TEXT_TO_WAVEFORM TEXT_TO_SPECTROGRAM".split()

# Types whose category does not follow from their tasks.
ASR = """speech-encoder-decoder glmasr nemo_speechlm moss_transcribe_diarize canary_decoder nemotron3_5_transcribe_word_timestamp
    moonshine_streaming_encoder""".split()
NOT_ASR = "dia pop2piano speecht5 seamless_m4t seamless_m4t_v2 vibevoice voxtral".split()
EMBEDDING = """colpali colqwen2 colmodernvbert dpr embedding_gemma2 embedding_gemma2_text clip_text_model tipsv2_text_model
    sam3_lite_text_text_model clvp_encoder modernvbert ultravbert neomme t5gemma2_encoder blip_text_model""".split()
VISION_PARTS = """aimv2 pixtral radio seggpt uvdoc groupvit sam3 sam3_lite_text sam3_tracker_video mgp-str tvp xclip pe_video
    vision-text-dual-encoder florence_vision flava_image_codebook bridgetower deepseek_ocr2_encoder sapiens2_head blip_2_qformer
    instructblip_qformer instructblipvideo_qformer idefics2_perceiver idefics_perciever molmo2_adapter flava_multimodal_model
    glm_image_vqmodel flava vilt lxmert visual_bert""".split()
AUDIO_PARTS = "clap encodec mimi xcodec univnet pe_audio pe_audio_video nemotron3_5_transcribe_asr_audio".split()
TEXT_PARTS = """dia_encoder blt_local_encoder qwen2_5_omni_bigvgan qwen2_5_omni_dit granite4_vision_text cohere2_vision layoutlmv2 layoutlmv3
    layoutxlm perceiver""".split()
# Text encoders of contrastive models (CLIP and the like).
CONTRASTIVE = "aimv2 align altclip bridgetower chinese_clip clap clipseg flava groupvit metaclip_2 owlv2 owlvit siglip siglip2 videoprism xclip"
# Text encoders (also of documents and tables): the bare model is for embeddings; with a head it is a language model.
ENCODER_TYPES = """albert bert big_bird bros camembert canine convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm esmc eurobert
    flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm layoutlmv2 layoutlmv3 lilt longformer luke markuplm megatron-bert mobilebert modernbert mpnet mra
    nomic_bert nystromformer rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert tapas ultrabert xlm-roberta
    xlm-roberta-xl xmod yoso""".split()
ENCODER_CLASSES = "JinaBertModel NomicBertModel NeoBERT LlamaBidirectionalModel".split()
# Several output modalities, or a thinker and a talker, or named omni.
OMNI = """qwen2_5_omni qwen2_5_omni_thinker qwen2_5_omni_talker qwen3_omni_moe qwen3_omni_moe_thinker qwen3_omni_moe_talker_text
    nemotron_h_omni cosmos3_omni emu3 janus moshi seamless_m4t seamless_m4t_v2""".split()


def tasks():
    """Maps each task to its classes by type."""
    found = {}
    for name, table in vars(modeling_auto).items():
        if name.endswith("_NAMES") and name != "CONFIG_MAPPING_NAMES":
            task = re.sub("_MAPPING_NAMES$|_NAMES$", "", name)
            found[task.removeprefix("MODEL_FOR_")] = table
    return found


def category(kind, of):
    """The category of a type that is registered for the tasks `of`."""
    has = lambda names: any(name in of for name in names)
    if kind in ASR:
        return "asr"
    if kind in EMBEDDING or (kind.endswith("_text_model") and kind.removesuffix("_text_model") in CONTRASTIVE.split()):
        return "embedding"
    if kind in VISION_PARTS:
        return "vision_encoder"
    if kind in AUDIO_PARTS:
        return "audio_encoder"
    if kind in TEXT_PARTS:
        return "transformers"
    if "SPEECH_SEQ_2_SEQ" in of and kind not in NOT_ASR:
        return "asr"
    if has(ASR_TASKS) and not has(AUDIO):
        return "asr"
    if has(AUDIO):
        return "audio_encoder"
    if has(VISION) and not has(TEXT_OUTPUT):
        return "vision_encoder"
    # A type without tasks is a component; its name tells which.
    if set(of) <= {"MODEL", "PRETRAINING"}:
        if re.search(r"audio|speech.*encoder|asr|parakeet|lasr|mimi_|voxtral.*encoder|acoustic_tokenizer|audioflamingo3_encoder", kind):
            return "audio_encoder"
        if re.search(r"vision|image_model|video_encoder|vqgan|(^|_)sam|edgetam|detr_|vit_model", kind):
            return "vision_encoder"
    return "transformers"


def class_category(name, of, kind, group):
    """The category of a class that does the tasks `of`, and belongs to a type of the category `group`."""
    if group != "transformers":
        return group
    if name in ENCODER_CLASSES or (kind in ENCODER_TYPES and set(of) <= {"MODEL", "TEXT_ENCODING"}) or name.endswith("EncoderModel"):
        return "embedding"
    if name.endswith("ForSpeechToText"):
        return "asr"
    if all(task in VISION for task in of):
        return "vision_encoder"
    return group


def key(line):
    """The sort key of a line."""
    return line.split("\t")[0].lower().replace("-", "_")


def write(file, what, lines):
    head = f"# Made by make.py from transformers {transformers.__version__}: {what}.\n"
    Path(__file__).with_name(file).write_text(head + "\n".join(sorted(lines, key=key)) + "\n")


def known():
    """The classes in known.txt, with their categories."""
    group = None
    for line in Path(__file__).with_name("known.txt").read_text().splitlines():
        if line.startswith("["):
            group = line.strip("[]")
        elif not line.startswith("#"):
            yield line, group


def main():
    found, types, classes = tasks(), [], {}
    for kind in sorted(configuration_auto.CONFIG_MAPPING_NAMES):
        of = {task: table[kind] for task, table in found.items() if kind in table}
        group = category(kind, of)
        marks = ("c" if "CAUSAL_LM" in of else "") + ("o" if kind in OMNI else "")
        parts = sorted(configuration_auto.CONFIG_MAPPING[kind].sub_configs)
        types.append("\t".join([kind, group, marks or "-", ",".join(parts) or "-"]))
        tasks_of = {}
        for task, entry in of.items():
            for name in [entry] if isinstance(entry, str) else entry:
                tasks_of.setdefault(name, []).append(task)
        for name, class_tasks in tasks_of.items():
            # A class shared by several types belongs to the type in its name, else to the first.
            named = name.lower().startswith(re.sub("[^a-z0-9]", "", kind))
            if name.lower() not in classes or named:
                classes[name.lower()] = "\t".join([name, class_category(name, class_tasks, kind, group), kind])
    for name, group in known():
        classes.setdefault(name.lower(), "\t".join([name, class_category(name, ["MODEL"], None, group), "-"]))
    write("types.tsv", "type, category, marks, parts", types)
    write("classes.tsv", "class, category, type", classes.values())


if __name__ == "__main__":
    main()
