//! `model_fwd`, `model_fwd_w_cache` and `model_fwd_w_cache_latent_models`: forward passes.

use super::alive::store_alive;
use super::batch::{AnalysisBatch, OpContext};
use super::forward::{forward, forward_with_bases};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::DataType;
use pellucid_models::Result;
use std::borrow::Cow;

const ANSWER_LOGITS: Field = Field::example("answer_logits", DataType::Float32List);
const ANSWER_INDICES: Field = Field::example("answer_indices", DataType::Int64);

pub(super) static PLAIN: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("model_fwd"),
        aliases: &["model_forward"],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logits at the answer position of the plain model"),
        inputs: Cow::Borrowed(&[Field::memory("input")]),
        outputs: Cow::Borrowed(&[ANSWER_LOGITS, ANSWER_INDICES]),
        needs: Needs { saes: false, gradients: false },
    },
    run: |context, batch| forward(context, batch, false, false),
};

pub(super) static WITH_CACHE: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("model_fwd_w_cache"),
        aliases: &["model_forward_w_cache"],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logits of the plain model, and the latents of its activations at the answer position"),
        inputs: Cow::Borrowed(&[Field::memory("input")]),
        outputs: Cow::Borrowed(&[ANSWER_LOGITS, ANSWER_INDICES, Field::memory("cache")]),
        needs: Needs { saes: false, gradients: false },
    },
    run: |context, batch| forward(context, batch, false, true),
};

pub(super) static WITH_LATENTS: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("model_fwd_w_cache_latent_models"),
        aliases: &["model_cache_forward", "model_fwd_w_cache_sae"],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logits with all autoencoders spliced in at every position, and their active latents"),
        inputs: Cow::Borrowed(&[Field::memory("input")]),
        outputs: Cow::Borrowed(&[
            ANSWER_LOGITS,
            ANSWER_INDICES,
            Field::memory("cache"),
            Field::latent("activation", DataType::Float32),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run: run_with_latents,
};

fn run_with_latents(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    if context.keeps_bases {
        forward_with_bases(context, batch)?;
    } else {
        forward(context, batch, true, true)?;
    }
    store_alive(context, batch)
}
