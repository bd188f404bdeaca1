#!/usr/bin/env python3
"""Trains the built-in model: a Llama of 1.4 million parameters on short simple stories.

    train.py stories.txt OUT [--minutes 30] [--resume]

`stories.txt` has one story per line, with newlines written as \\n (sample.py writes it). OUT becomes a Hugging Face
directory: bf16 safetensors, configuration, byte-level BPE tokenizer of 2,048 tokens. It also holds state.pt, from which
--resume continues; without that file --resume starts from the saved weights. Needs torch, transformers and tokenizers.

Hidden matrices train with Muon, the rest with AdamW. Three rows of each batch repeat a random sequence, so that
induction heads form.
"""
import argparse
import os
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB, CONTEXT, BATCH, COPIES = 2048, 256, 32, 3
END = "<|endoftext|>"
HELD_OUT = 0.02
PROMPTS = ("Once upon a time", "Lily and Tom went to the", "One day, a little cat named")


# ---- data ----------------------------------------------------------------------------------------------------------

def read(path):
    with open(path, encoding="utf8") as file:
        return [line.rstrip("\n").replace("\\n", "\n") for line in file if line.strip()]


def make_tokenizer(stories, out):
    """Loads the directory's tokenizer, or trains it on the stories."""
    file = os.path.join(out, "tokenizer.json")
    if os.path.exists(file):
        return Tokenizer.from_file(file)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        stories, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[END], initial_alphabet=alphabet))
    tokenizer.save(file)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=CONTEXT,
    ).save_pretrained(out)
    return tokenizer


def batch(data):
    """Random windows of the text, the first few of them replaced by repeated random sequences."""
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
    rows = torch.stack([data[start : start + CONTEXT] for start in starts])
    for row in range(COPIES):
        length = int(torch.randint(16, CONTEXT // 2, (1,)))
        sequence = torch.randint(1, VOCAB, (length,))
        repeated = sequence.repeat(CONTEXT // length + 1)
        rows[row] = torch.cat([torch.zeros(1, dtype=torch.long), repeated])[:CONTEXT]
    return rows


# ---- model and optimizers ------------------------------------------------------------------------------------------

def make_model():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, rms_norm_eps=1e-5, initializer_range=0.05))


def orthogonalize(gradient, steps=5):
    """Newton-Schulz iteration towards the nearest orthogonal matrix (Muon's update)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient / (gradient.norm() + 1e-7)
    tall = x.size(0) > x.size(1)
    if tall:
        x = x.T
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.95):
        super().__init__(parameters, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                buffer = self.state[p].setdefault("m", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - momentum)
                update = orthogonalize(p.grad.lerp(buffer, momentum))
                p.mul_(1 - rate * 0.1).add_(update, alpha=-rate * max(1, p.size(0) / p.size(1)) ** 0.5)


def make_optimizers(model):
    """Returns both optimizers, and the parameters of the second, whose gradients are clipped."""
    is_hidden = lambda name, p: p.ndim == 2 and "embed" not in name
    hidden = [p for name, p in model.named_parameters() if is_hidden(name, p)]
    rest = [p for name, p in model.named_parameters() if not is_hidden(name, p)]
    return [Muon(hidden, lr=0.02), torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)], rest


def rate_at(step, done):
    """Learning rate factor: 40 steps of warm-up, constant until 40 % of the time, then linear decay."""
    return min(1, (step + 1) / 40) * (1 if done < 0.4 else max(0.02, (1 - done) / 0.6))


# ---- training ------------------------------------------------------------------------------------------------------

@torch.no_grad()
def evaluate(model, held_out):
    model.eval()
    starts = torch.randint(len(held_out) - CONTEXT - 1, (64,), generator=torch.Generator().manual_seed(1))
    x = torch.stack([held_out[start : start + CONTEXT] for start in starts])
    loss = model(input_ids=x, labels=x).loss.item()
    model.train()
    return loss


def train(model, optimizers, clipped, data, held_out, minutes, seen):
    """Trains for `minutes`; returns the total number of tokens seen."""
    full = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    started, step, before = time.time(), 0, seen
    while (done := (time.time() - started) / (minutes * 60)) < 1:
        for optimizer, rate in zip(optimizers, full):
            optimizer.param_groups[0]["lr"] = rate * rate_at(step, done)
        x = batch(data)
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(clipped, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step, seen = step + 1, seen + x.numel()
        if step % 50 == 0:
            speed = (seen - before) / (time.time() - started)
            print(f"step {step} seen {seen} loss {loss.item():.3f} held out {evaluate(model, held_out):.3f} "
                  f"{speed:.0f} tokens/s", flush=True)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories")
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    torch.manual_seed(0)

    stories = read(arguments.stories)
    tokenizer = make_tokenizer(stories, arguments.out)
    data = torch.cat([torch.tensor([0] + encoding.ids) for encoding in tokenizer.encode_batch(stories)])
    held = int(len(data) * HELD_OUT)
    held_out, data = data[:held], data[held:]
    model = make_model()
    print(f"{len(stories)} stories, {len(data)} tokens, {sum(p.numel() for p in model.parameters())} parameters")
    optimizers, clipped = make_optimizers(model)

    state, seen = os.path.join(arguments.out, "state.pt"), 0
    full_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    if arguments.resume and os.path.exists(state):
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        for optimizer, values, rate in zip(optimizers, saved["opts"], full_rates):
            optimizer.load_state_dict(values)
            optimizer.param_groups[0]["lr"] = rate  # the saved rate is the decayed one
        seen = saved["seen"]
    elif arguments.resume:
        weights = LlamaForCausalLM.from_pretrained(arguments.out, dtype=torch.float32).state_dict()
        model.load_state_dict(weights)

    seen = train(model, optimizers, clipped, data, held_out, arguments.minutes, seen)
    print(f"held-out loss {evaluate(model, held_out):.4f} after {seen} tokens")
    torch.save(dict(model=model.state_dict(), opts=[o.state_dict() for o in optimizers], seen=seen), state)
    model.to(torch.bfloat16).save_pretrained(arguments.out)

    model.float().eval()
    for prompt in PROMPTS:
        x = torch.tensor([[0] + tokenizer.encode(prompt).ids])
        mask = torch.ones_like(x)
        y = model.generate(input_ids=x, attention_mask=mask, max_new_tokens=80, do_sample=False, pad_token_id=0)
        print("---", tokenizer.decode(y[0].tolist()))


if __name__ == "__main__":
    main()
