"""Bad input to caches, hooks and readouts: the error names the problem, the site and a hint."""

import numpy as np
import pytest

import pellucid
from pellucid.transformer_lens import FactoredMatrix


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"names_filter": "blocks.2.hook_resid_pots"},
            r"blocks\.2\.hook_resid_pots[\s\S]*did you mean `blocks\.2\.hook_resid_post`",
        ),
        ({"names_filter": "blocks.9.hook_resid_post"}, r"no layer 9[\s\S]*0 to 5"),
        ({"names_filter": ("resid_post", 9)}, r"no layer 9[\s\S]*0 to 5"),
        ({"names_filter": [("resid_post", 1, "ln1", 4)]}, r"not a short form[\s\S]*resid_post"),
        ({"names_filter": [3]}, r"3 is not the name of a hook"),
        ({"names_filter": "hook_pos_embed"}, r"no absolute positions"),
        ({"names_filter": "blocks.0.hook_attn_in"}, r"hook_attn_in[\s\S]*copy of the residual stream[\s\S]*resid_pre"),
        ({"names_filter": "blocks.2.hook_k_input"}, r"hook_k_input[\s\S]*one projection[\s\S]*layers\.2\.k\b"),
        (
            {"names_filter": "blocks.1.hook_mlp_in"},
            r"hook_mlp_in[\s\S]*copy of the residual stream[\s\S]*layers\.1\.mlp_in",
        ),
        ({"names_filter": []}, r"empty list"),
        ({"names_filter": lambda name: False}, r"matches no hook name[\s\S]*hook_embed"),
        ({"stop_at_layer": 7}, r"stop_at_layer=7[\s\S]*0 to 6"),
        ({"stop_at_layer": -7}, r"stop_at_layer=-7"),
        ({"stop_at_layer": 2, "names_filter": "resid_post4"}, r"blocks\.4\.hook_resid_post[\s\S]*stop_at_layer=2"),
        ({"stop_at_layer": 2, "return_type": "loss"}, r"no loss"),
        ({"pos_slice": 13}, r"pos_slice 13 is out of range[\s\S]*0 to 12"),
        ({"pos_slice": [0, -14]}, r"pos_slice -14 is out of range"),
        ({"pos_slice": slice(20, 22)}, r"is empty in prompt 0"),
        ({"pos_slice": "last"}, r"pos_slice is 'last'[\s\S]*an integer, a slice"),
        ({"return_type": "probs"}, r"return_type='probs'[\s\S]*'logits'"),
        ({"remove_batch_dim": True}, r"remove_batch_dim with 2 prompts"),
        ({"incl_bwd": True}, r"gradients need a metric[\s\S]*metric=lambda"),
        ({"bwd_hooks": [("z1", lambda g, hook: g)]}, r"gradients need a metric"),
        ({"incl_bwd": True, "metric": lambda t: 3.0}, r"the metric returned float[\s\S]*lambda t"),
        ({"fwd_hooks": ["z1"]}, r"hook 0 is 'z1'[\s\S]*pairs"),
        ({"fwd_hooks": [("z1", 3)]}, r"hook 0"),
        ({"fwd_hooks": [("z9", lambda z, hook: z)]}, r"layer 9"),
    ],
)
def test_invalid_arguments(model, pair, options, message):
    with pytest.raises(pellucid.Error, match=message):
        model.run_with_cache(pair, **options)


def test_hooks_take_prompts_of_equal_length(model, pair):
    with pytest.raises(pellucid.InputError, match=r"6 and 13 tokens[\s\S]*one by one"):
        model.run_with_hooks([pair[0], "Tom saw a dog. The"], fwd_hooks=[("z1", lambda z, hook: z)], padded=True)


def test_a_hook_outside_layers_has_no_layer(model, pair):
    with pytest.raises(pellucid.PlanError, match=r"hook_embed.*not in a layer"):
        model.run_with_hooks(pair, fwd_hooks=[("hook_embed", lambda stream, hook: hook.layer())])


def test_a_loss_of_one_token(model):
    with pytest.raises(pellucid.InputError, match="at least two tokens"):
        model([[5]], return_type="loss")


def test_bad_layers_of_a_cache(model, pair):
    _, cache = model.run_with_cache(pair)
    with pytest.raises(pellucid.SiteError, match=r"layer=7[\s\S]*0 to 6"):
        cache.decompose_resid(layer=7)
    with pytest.raises(pellucid.SiteError, match="mlp_input at the end"):
        cache.accumulated_resid(mlp_input=True)
    with pytest.raises(pellucid.InputError, match="mode='both'"):
        cache.decompose_resid(mode="both")
    with pytest.raises(pellucid.InputError, match="no components before layer 0"):
        cache.decompose_resid(layer=0, incl_embeds=False)
    with pytest.raises(pellucid.PlanError, match="99 is out of range for an axis of length 13"):
        cache.decompose_resid(pos_slice=99)
    with pytest.raises(pellucid.InputError, match="return_type='prob'"):
        cache.logit_lens(return_type="prob")
    with pytest.raises(pellucid.SiteError, match="matches 6 sites"):
        cache["layers.*.z"]


def test_bad_readouts(model, pair):
    with pytest.raises(pellucid.InputError, match=r"shape \[3\][\s\S]*must be \[128\]"):
        model.steer(1, np.ones(3))
    with pytest.raises(pellucid.SiteError, match="no layer 6"):
        model.steer(6, np.ones(128))
    with pytest.raises(pellucid.InputError, match="range 3 to 1 is empty"):
        model.skip_layers(3, 1)
    with pytest.raises(pellucid.SiteError, match="no layer 8"):
        model.logit_lens(pair, layers=[8])
    with pytest.raises(pellucid.InputError, match=r"shape \[2, 3\]"):
        model.ln_final(np.ones((2, 3)))
    with pytest.raises(pellucid.SiteError, match="no layer 6"):
        model.blocks[6]


def test_factors_of_mismatched_shapes():
    with pytest.raises(pellucid.InputError, match=r"\[4, 2\] and \[3, 4\]"):
        FactoredMatrix(np.ones((4, 2)), np.ones((3, 4)))
    with pytest.raises(pellucid.InputError, match="not square"):
        _ = FactoredMatrix(np.ones((4, 2)), np.ones((2, 5))).eigenvalues
