"""The behaviors with nnsight."""
import nnsight
import torch
from behaviors import INPUT, WEIGHT
from nnsight.modeling.transformers import TransformersModel
from transformers import AutoModelForCausalLM


def placeholder_tokenizer():
    """A tokenizer that is never used: inputs are token ids, but nnsight requires one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a", bos_token="b", eos_token="b", pad_token="b")
    tokenizer.padding_side = "left"
    return tokenizer


def array(tensor):
    """The tensor as an array, without the batch axis if there is one row."""
    out = tensor.detach().float().numpy()
    return out[0] if out.ndim > 2 and out.shape[0] == 1 else out


class Behaviors:
    def __init__(self, path, prompts, dtype=torch.float32):
        wrapped = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
        wrapped.generation_config.eos_token_id = None
        wrapped.generation_config.pad_token_id = 1
        self.torch = wrapped
        self.model = TransformersModel(wrapped, task="text-generation", tokenizer=placeholder_tokenizer())
        self.layers = self.model.model.layers
        self.p = prompts
        self.first, self.second = torch.tensor([prompts.first]), torch.tensor([prompts.second])

    @torch.no_grad()
    def generates(self):
        with self.model.generate(self.first, max_new_tokens=3, do_sample=False) as tracer:
            ids = tracer.result.save()
        return {"ids": ids[0, len(self.p.first) :].tolist()}

    @torch.no_grad()
    def zeroed_block(self):
        block = self.layers[self.p.last]
        with self.model.trace(self.first):
            before = block.output.clone().save()
            block.output[:] = 0
            after = block.output.clone().save()
            logits = self.model.lm_head.output.save()
        return {"before": array(before), "after": array(after), "logits": array(logits)}

    @torch.no_grad()
    def zeroed_embedding(self):
        table = self.model.model.embed_tokens
        with self.model.trace(self.first):
            before = table.output.clone().save()
            table.output = table.output * 0
            after = table.output.clone().save()
            logits = self.model.lm_head.output.save()
        return {"before": array(before), "after": array(after), "logits": array(logits)}

    @torch.no_grad()
    def one_of_two_rows(self):
        block = self.layers[self.p.last]
        with self.model.trace() as tracer:
            with tracer.invoke(self.first):
                block.output[:] = 0
            with tracer.invoke(self.first):
                kept = block.output.clone().save()
                logits = self.model.lm_head.output.save()
        return {"block": array(kept), "logits": array(logits)}

    @torch.no_grad()
    def own_value_back(self):
        block = self.layers[self.p.middle]
        with self.model.trace(self.first):
            entered = block.input.clone().save()
        with self.model.trace(self.first):
            block.input = entered
            logits = self.model.lm_head.output.save()
        return {"logits": array(logits)}

    @torch.no_grad()
    def condition(self):
        block, other = self.layers[self.p.last], self.layers[0]
        with self.model.trace(self.first):
            if torch.all(other.output.abs() < 1e5):
                block.output[:] = 0
            kept = block.output.clone().save()
            logits = self.model.lm_head.output.save()
        return {"block": array(kept), "logits": array(logits)}

    @torch.no_grad()
    def attached(self):
        block = self.layers[0]
        block.passed = torch.nn.Identity()
        with self.model.trace() as tracer:
            with tracer.invoke(self.first):
                block.output = block.passed(block.output, hook=True)
                logits = self.model.lm_head.output.save()
            with tracer.invoke():
                inner = block.passed.output.clone().save()
                block.passed.output = torch.zeros_like(block.passed.output)
        return {"inner": array(inner), "logits": array(logits)}

    @torch.no_grad()
    def requests(self):
        both = torch.cat([self.first, self.second])
        with self.model.trace() as tracer:
            with tracer.invoke(self.second):
                a = self.model.lm_head.output.clone().save()
            with tracer.invoke(both):
                b = self.model.lm_head.output.clone().save()
            with tracer.invoke():
                everything = self.model.lm_head.output.clone().save()
            with tracer.invoke():
                again = self.model.lm_head.output.clone().save()
            with tracer.invoke(self.first):
                c = self.model.lm_head.output.clone().save()
        rows = [len(x) for x in (a, b, everything, again, c)]
        return {"rows": rows, "a": array(a), "b": array(b), "all": array(everything), "c": array(c)}

    @torch.no_grad()
    def unequal_lengths(self):
        with self.model.trace() as tracer:
            found = nnsight.save([])
            for prompt in self.p.unequal:
                with tracer.invoke(torch.tensor([prompt])):
                    found.append(self.model.lm_head.output[0, -1].clone())
        return {"last": torch.stack(list(found)).numpy()}

    @torch.no_grad()
    def embeddings_moved(self):
        table = self.model.model.embed_tokens
        with self.model.trace() as tracer:
            barrier = tracer.barrier(2)
            with tracer.invoke(self.first):
                source = table.output.clone()
                barrier()
            with tracer.invoke(self.second):
                barrier()
                table.output = source
                logits = self.model.lm_head.output.save()
        return {"logits": array(logits)}

    @torch.no_grad()
    def head_moved(self):
        project = self.layers[self.p.middle].self_attn.o_proj
        width = self.torch.model.layers[0].self_attn.head_dim
        with self.model.trace() as tracer:
            barrier = tracer.barrier(2)
            with tracer.invoke(self.first):
                source = project.input[:, -1, :width].clone()
                barrier()
            with tracer.invoke(self.second):
                barrier()
                changed = project.input.clone()
                changed[:, -1, :width] = source
                project.input = changed
                back = project.input[0, -1, :width].clone().save()
                logits = self.model.lm_head.output.save()
        return {"back": array(back), "logits": array(logits)}

    @torch.no_grad()
    def skipped(self):
        layers = self.layers
        with self.model.trace(self.first):
            first = layers[0].output
            layers[1].skip(first)
            block = layers[1].output.clone().save()
            logits = self.model.lm_head.output.save()
        with self.model.trace(self.first):
            first = layers[0].output
            layers[1].skip(first)
            layers[2].skip(first)
            chain = self.model.lm_head.output.save()
        return {"block": array(block), "logits": array(logits), "chain": array(chain)}

    @torch.no_grad()
    def stopped(self):
        with self.model.trace(self.first) as tracer:
            block = self.layers[0].output.clone().save()
            tracer.stop()
        return {"block": array(block)}

    @torch.no_grad()
    def scanned(self):
        attention = self.layers[0].self_attn
        with self.model.scan(self.first):
            inputs = nnsight.save(list(attention.inputs[1]["hidden_states"].shape))
            outputs = nnsight.save(list(attention.output[0].shape))
        return {"shapes": [list(inputs)[1:], list(outputs)[1:]]}

    @torch.no_grad()
    def steps(self):
        block = self.layers[0]
        with self.model.generate(self.first, max_new_tokens=4, do_sample=False) as tracer:
            each = nnsight.save([])
            for _ in tracer.iter[:4]:
                each.append(block.output[0, -1:].clone())
        with self.model.generate(self.first, max_new_tokens=4, do_sample=False) as tracer:
            some = nnsight.save([])
            for _ in tracer.iter[1:3]:
                some.append(block.output[0, -1:].clone())
        return {"each": torch.cat(list(each)).numpy(), "some": torch.cat(list(some)).numpy()}

    @torch.no_grad()
    def ranges(self):
        block = self.layers[0]
        with self.model.generate(max_new_tokens=4, do_sample=False) as tracer:
            with tracer.invoke(self.first):
                a = nnsight.save([])
                for _ in tracer.iter[1:3]:
                    a.append(block.output[0, -1:].clone())
            with tracer.invoke(self.second):
                b = nnsight.save([])
                for _ in tracer.iter[0:3]:
                    b.append(block.output[0, -1:].clone())
        return {"counts": [len(a), len(b)], "second": torch.cat(list(b)).numpy()}

    @torch.no_grad()
    def skipped_step(self):
        block = self.layers[1]
        # A skipped block adds nothing to the KV cache, which makes the next step fail. So this runs
        # without a cache, and only the step itself is compared.
        with self.model.generate(self.first, max_new_tokens=3, do_sample=False, use_cache=False) as tracer:
            each = nnsight.save([])
            for step in tracer.iter[:3]:
                if step == 1:
                    block.skip(torch.zeros_like(block.input))
                each.append(block.output[0, -1:].clone())
        return {"zero": [not bool(step.any()) for step in each], "before": each[0].numpy()}

    @torch.no_grad()
    def called_thrice(self):
        class Thrice(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(*WEIGHT.shape, bias=False)
                self.linear.weight.data = torch.from_numpy(WEIGHT)

            def forward(self, x):
                return self.linear(self.linear(self.linear(x)))

        model = nnsight.NNsight(Thrice())
        with model.trace(torch.from_numpy(INPUT)) as tracer:
            found = nnsight.save([])
            for call in tracer.iter[:3]:
                if call == 1:
                    found.append(model.linear.output.clone())
                    model.linear.output = torch.zeros_like(model.linear.output)
                if call == 2:
                    found.append(model.linear.output.clone())
        return {"second": found[0].numpy(), "out": found[1].numpy()}

    def gradients(self):
        last, first = self.layers[self.p.last], self.layers[0]
        with self.model.trace(self.first):
            early, late = first.output, last.output
            total = self.model.lm_head.output.sum()
            with total.backward(retain_graph=True):
                at_last = late.grad.clone().save()
                at_first = early.grad.clone().save()
            with (2.0 * total).backward():
                scaled = late.grad.clone().save()
        with self.model.trace(self.first):
            early, late = first.output, last.output
            with self.model.lm_head.output.sum().backward():
                late.grad[:, -1] = 0
                cut = late.grad.clone().save()
                upstream = early.grad.clone().save()
        return {"last": array(at_last), "first": array(at_first), "scaled": array(scaled), "cut": array(cut), "upstream": array(upstream)}

    @torch.no_grad()
    def cached(self):
        block = self.layers[1]
        with self.model.trace(self.first) as tracer:
            cache = tracer.cache(modules=[layer for layer in self.layers]).save()
            block.output[:, 0] = 0
        return {f"block {i}": array(cache[f"model.model.layers.{i}"].output) for i in range(self.p.layers)}

    @torch.no_grad()
    def standing(self):
        block = self.layers[1]
        with self.model.edit(inplace=True):
            block.output[:, 0] = 0
        with self.model.trace(self.first):
            edited = self.model.lm_head.output.save()
        self.model.clear_edits()
        with self.model.trace(self.first):
            cleared = self.model.lm_head.output.save()
        return {"edited": array(edited), "cleared": array(cleared)}

    @torch.no_grad()
    def every_block(self):
        with self.model.trace(self.first):
            found = nnsight.save({})
            for i, layer in enumerate(self.layers):
                found[f"{i} attn in"] = layer.self_attn.inputs[1]["hidden_states"].clone()
                found[f"{i} attn"] = layer.self_attn.output[0].clone()
                found[f"{i} mlp in"] = layer.mlp.input.clone()
                found[f"{i} mlp"] = layer.mlp.output.clone()
                found[f"{i} out"] = layer.output.clone()
        return {name: array(value) for name, value in found.items()}

    @torch.no_grad()
    def steered(self):
        vector = torch.linspace(-1, 1, self.torch.config.hidden_size)
        block = self.layers[self.p.middle]
        with self.model.trace(self.first):
            block.output = block.output + vector
            logits = self.model.lm_head.output.save()
        return {"logits": array(logits)}

    @torch.no_grad()
    def module_called(self):
        block = self.layers[self.p.middle]
        with self.model.trace(self.first):
            lens = self.model.lm_head(self.model.model.norm(block.output)).save()
        return {"lens": array(lens)}

    @torch.no_grad()
    def attention_weights(self):
        with self.model.trace(self.first):
            found = nnsight.save([])
            for layer in self.layers:
                found.append(layer.self_attn.output[1].clone())
        return {f"{i}": value[0].numpy() for i, value in enumerate(found)}

    def head_gradient(self):
        project = self.layers[self.p.middle].self_attn.o_proj
        with self.model.trace(self.first):
            z = project.input
            logit = self.model.lm_head.output[0, -1, 7]
            with logit.backward():
                gradient = z.grad.clone().save()
        return {"z": array(gradient)}

    def weight_gradients(self):
        layer = self.torch.model.layers[self.p.middle]
        weights = [layer.self_attn.q_proj.weight, layer.post_attention_layernorm.weight, layer.mlp.down_proj.weight, self.torch.model.embed_tokens.weight]
        self.torch.zero_grad()
        loss = -self.torch(self.first).logits[0, -1].log_softmax(-1)[7]
        loss.backward()
        return {f"{i}": weight.grad.numpy().copy() for i, weight in enumerate(weights)}
