"""The behaviors with Pellucid."""
import numpy as np
import pellucid
from behaviors import INPUT, WEIGHT


class Behaviors:
    def __init__(self, path, prompts):
        self.model = pellucid.load(str(path), dtype="f32")
        self.p = prompts

    def generates(self):
        return {"ids": self.model.generate(self.p.first, max_new=3, eos=False).result.tokens}

    def zeroed_block(self):
        with self.model.trace(self.p.first) as t:
            before = t.layers[self.p.last].output.save()
            t.layers[self.p.last].output = 0
            after, logits = t.layers[self.p.last].output.save(), t.logits.save()
        return {"before": before.value, "after": after.value, "logits": logits.value}

    def zeroed_embedding(self):
        with self.model.trace(self.p.first) as t:
            before = t.embed.save()
            t.embed *= 0
            after, logits = t.embed.save(), t.logits.save()
        return {"before": before.value, "after": after.value, "logits": logits.value}

    def one_of_two_rows(self):
        with self.model.trace() as t:
            with t.row(self.p.first):
                t.layers[self.p.last].output = 0
            with t.row(self.p.first):
                block, logits = t.layers[self.p.last].output.save(), t.logits.save()
        return {"block": block.value, "logits": logits.value}

    def own_value_back(self):
        with self.model.trace(self.p.first) as t:
            entered = t.layers[self.p.middle].input.save()
        with self.model.trace(self.p.first) as t:
            t.layers[self.p.middle].input = entered.value
            logits = t.logits.save()
        return {"logits": logits.value}

    def condition(self):
        with self.model.trace(self.p.first) as t:
            small = t.layers[0].output.abs().max() < 1e5
            t.layers[self.p.last].output = t.where(small, 0.0, t.layers[self.p.last].output)
            block, logits = t.layers[self.p.last].output.save(), t.logits.save()
        return {"block": block.value, "logits": logits.value}

    def attached(self):
        with self.model.trace(self.p.first) as t:
            passed = t.layers[0].output.copy()
            inner = passed.save()
            t.layers[0].output = passed * 0
            logits = t.logits.save()
        return {"inner": inner.value, "logits": logits.value}

    def requests(self):
        with self.model.trace() as t:
            with t.row(self.p.second):
                a = t.logits.save()
            with t.row([self.p.first, self.p.second]):
                b = t.logits.save()
            with t.row(self.p.first):
                c = t.logits.save()
            everything, again = t.batch.logits.save(), t.batch.logits.save()
        rows = [1, len(b.value), len(everything.value), len(again.value), 1]
        return {"rows": rows, "a": a.value, "b": np.stack(b.value), "all": np.stack(everything.value), "c": c.value}

    def unequal_lengths(self):
        with self.model.trace(self.p.unequal) as t:
            last = t.logits[:, -1].save()
        return {"last": np.stack(last.value)}

    def embeddings_moved(self):
        with self.model.trace() as t:
            with t.row(self.p.first):
                source = t.embed
            with t.row(self.p.second):
                t.embed = source
                logits = t.logits.save()
        return {"logits": logits.value}

    def head_moved(self):
        with self.model.trace() as t:
            with t.row(self.p.first):
                source = t.layers[self.p.middle].z[:, -1, 0]
            with t.row(self.p.second):
                t.layers[self.p.middle].z[:, -1, 0] = source
                back, logits = t.layers[self.p.middle].z[:, -1, 0].save(), t.logits.save()
        return {"back": back.value, "logits": logits.value}

    def skipped(self):
        with self.model.trace(self.p.first) as t:
            t.layers[1].skip(t.layers[0].output)
            block, logits = t.layers[1].output.save(), t.logits.save()
        with self.model.trace(self.p.first) as t:
            for layer in t.layers[1:3]:
                layer.skip(t.layers[0].output)
            chain = t.logits.save()
        return {"block": block.value, "logits": logits.value, "chain": chain.value}

    def stopped(self):
        with self.model.trace(self.p.first) as t:
            block = t.layers[0].output.save()
        return {"block": block.value}

    def scanned(self):
        with self.model.scan(self.p.first) as t:
            inputs, outputs = t.layers[0].attn.input.save(), t.layers[0].attn.output.save()
        return {"shapes": [list(inputs.shape), list(outputs.shape)]}

    def steps(self):
        with self.model.generate(self.p.first, max_new=4, eos=False) as t:
            each, some = t.steps[:].layers[0].output.save(), t.steps[1:3].layers[0].output.save()
        # Step 0 is the prompt's last position.
        return {"each": np.concatenate(each.value), "some": np.concatenate(some.value)}

    def ranges(self):
        with self.model.generate(max_new=4, eos=False) as t:
            with t.row(self.p.first):
                first = t.steps[1:3].layers[0].output.save()
            with t.row(self.p.second):
                second = t.steps[0:3].layers[0].output.save()
        return {"counts": [len(first.value), len(second.value)], "second": np.concatenate(second.value)}

    def skipped_step(self):
        with self.model.generate(self.p.first, max_new=3, eos=False) as t:
            t.steps[1].layers[1].skip(0)
            each = t.steps[:].layers[1].output.save()
        return {"zero": [not step.any() for step in each.value], "before": each.value[0]}

    def called_thrice(self):
        net = pellucid.Network()
        x = net.input("x", WEIGHT.shape[1])
        for name in ("first", "second", "third"):
            x = net.linear(name, x, WEIGHT.shape[0], weight=None if name == "first" else "first")
        model = net.build({"first": WEIGHT})
        with model.trace(INPUT) as t:
            second = t["second"].save()
            t["second"] = 0
            out = t["third"].save()
        return {"second": second.value, "out": out.value}

    def gradients(self):
        last, first = self.p.last, 0
        with self.model.trace(self.p.first) as t:
            total = t.logits.sum()
            with total.backward():
                at_last, at_first = t.layers[last].output.grad.save(), t.layers[first].output.grad.save()
            scaled = t.gradient(2.0 * total, t.layers[last].output).save()
        with self.model.trace(self.p.first) as t:
            with t.logits.sum().backward():
                t.layers[last].output.grad[:, -1] = 0
                cut, upstream = t.layers[last].output.grad.save(), t.layers[first].output.grad.save()
        return {
            "last": at_last.value, "first": at_first.value, "scaled": scaled.value, "cut": cut.value, "upstream": upstream.value,
        }

    def cached(self):
        with self.model.trace(self.p.first) as t:
            cache = t.cache("layers.*.resid_post")
            t.layers[1].output[:, 0] = 0
        return {f"block {i}": cache[f"layers.{i}.resid_post"] for i in range(self.p.layers)}

    def standing(self):
        with self.model.edit() as e:
            e.layers[1].output[:, 0] = 0
        def logits(model):
            with model.trace(self.p.first) as t:
                out = t.logits.save()
            return out.value
        return {"edited": logits(e.model), "cleared": logits(e.model.without_edits())}

    def every_block(self):
        with self.model.trace(self.p.first) as t:
            found = {}
            for i, layer in enumerate(t.layers):
                found |= {f"{i} out": layer.output.save(), f"{i} attn in": layer.attn_in.save(), f"{i} attn": layer.attn_out.save()}
                found |= {f"{i} mlp in": layer.mlp_in.save(), f"{i} mlp": layer.mlp_out.save()}
        return {name: value.value for name, value in found.items()}

    def steered(self):
        vector = np.linspace(-1, 1, self.model.width, dtype=np.float32)
        with self.model.trace(self.p.first) as t:
            t.layers[self.p.middle].output += vector
            logits = t.logits.save()
        return {"logits": logits.value}

    def module_called(self):
        with self.model.trace(self.p.first) as t:
            lens = t.lm_head(t.final_norm(t.layers[self.p.middle].output)).save()
        return {"lens": lens.value}

    def attention_weights(self):
        with self.model.trace(self.p.first) as t:
            found = [layer.attn_probs.save() for layer in t.layers]
        return {f"{i}": value.value for i, value in enumerate(found)}

    def head_gradient(self):
        with self.model.trace(self.p.first) as t:
            gradient = t.gradient(t.logits[:, -1, 7].sum(), t.layers[self.p.middle].z).save()
        return {"z": gradient.value.reshape(len(self.p.first), -1)}

    def weight_gradients(self):
        middle = self.p.middle
        names = [f"layers.{middle}.attn.q", f"layers.{middle}.mlp.norm.gain", f"layers.{middle}.mlp.down", "embed"]
        with self.model.trace(self.p.first) as t:
            loss = -t.logits[:, -1].log_softmax()[:, 7].sum()
            found = [t.weight_grad(name, of=loss).save() for name in names]
        return {f"{i}": value.value for i, value in enumerate(found)}
