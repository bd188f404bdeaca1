//! Outlines: everything about a model except its weights, for clients of a model that runs on a
//! server.
//!
//! From an outline a client makes a [`LoadedModel`] without weights: tokens, chats, sites, plans
//! and their checks are exactly those of the server, and only the computation is elsewhere. The
//! architecture and the tokenizer travel as data, so it does not matter from which files or formats
//! the server made them.

use crate::attempt::Strategy;
use crate::chat::ChatTemplate;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::steer::fingerprint;
use crate::tokenizer::{SpecialTokens, Tokenizer};
use pellucid_engine::program::SaeAttachment;
use pellucid_engine::{Architecture, Model, Program};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// A model without its weights, as data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelOutline {
    /// Name for display.
    pub name: String,
    /// Determines ops, sites, and the names and shapes of the weights.
    pub architecture: Architecture,
    /// Attached autoencoders, whose features are sites.
    pub saes: Vec<SaeAttachment>,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<TokenizerOutline>,
    /// Source of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// End-of-text tokens.
    pub eos: Vec<u32>,
    /// Warnings of the loader.
    pub warnings: Vec<String>,
    /// The strategy that loaded it.
    pub strategy: Strategy,
    /// Variants of tensor names under which weights were found, one sentence per rule.
    pub name_variants: Vec<String>,
    /// Identifies the weights, for warnings about steering vectors of another model.
    pub fingerprint: String,
    /// How it was tuned, if its files say so.
    pub tuning: Option<String>,
    /// Family, layers, width, storage formats and tuning.
    pub description: String,
    /// Storage formats of the weights, with the bytes in each.
    pub storage: Vec<(String, usize)>,
}

/// A tokenizer as data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenizerOutline {
    /// The contents of a `tokenizer.json`.
    pub json: String,
    /// Its special tokens.
    pub special: SpecialTokens,
}

impl LoadedModel {
    /// Returns the model without its weights, as data.
    pub fn outline(&self) -> Result<ModelOutline> {
        let parts = |tokenizer: &Arc<Tokenizer>| -> Result<TokenizerOutline> {
            Ok(TokenizerOutline { json: tokenizer.to_json()?, special: tokenizer.special().clone() })
        };
        Ok(ModelOutline {
            name: self.name.clone(),
            architecture: self.model.program().architecture().clone(),
            saes: self.model.sae_attachments(),
            tokenizer: self.tokenizer.as_ref().map(parts).transpose()?,
            chat_template: self.chat.as_ref().map(|template| template.source().to_owned()),
            eos: self.eos.clone(),
            warnings: self.warnings.clone(),
            strategy: self.strategy,
            name_variants: self.name_variants.iter().map(ToString::to_string).collect(),
            fingerprint: self.fingerprint.clone().unwrap_or_else(|| fingerprint(&self.model)),
            tuning: self.tuning.clone(),
            description: self.describe(),
            storage: self.model.weights().formats(),
        })
    }

    /// Makes a model without weights. Calls that compute are refused.
    pub fn without_weights(outline: &ModelOutline) -> Result<LoadedModel> {
        let program = Program::new(outline.architecture.clone())?;
        let origin = Path::new(&outline.name);
        let tokenizer = outline.tokenizer.as_ref().map(|TokenizerOutline { json, special }| {
            Tokenizer::from_json(json, special.clone(), origin).map(Arc::new)
        });
        Ok(LoadedModel {
            tokenizer: tokenizer.transpose()?,
            chat: outline.chat_template.as_ref().map(|source| ChatTemplate::new(source, origin)),
            eos: outline.eos.clone(),
            warnings: outline.warnings.clone(),
            strategy: outline.strategy,
            tuning: outline.tuning.clone(),
            fingerprint: Some(outline.fingerprint.clone()),
            ..LoadedModel::without_files(outline.name.clone(), Model::without_weights(program, &outline.saes)?)
        })
    }
}
