//! dictionary_learning: `config.json` with `trainer`, and `ae.pt`, a state dict of the class that
//! `trainer.dict_class` names.
//!
//! Each class has its own names, orientation and rule for the decoder bias; the table of
//! `read_class` lists them. Classes that multiply their features by the decoder norms
//! (`AutoEncoder` when loaded, gated and JumpReLU always) are read with the norms folded, so
//! that activations are those of the library.

use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Point, Site};

use super::super::file::WeightFile;
use super::super::hooks::site_of;
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{BASE_MODEL_KEYS, Settings, text_at};
use super::super::view::MatrixView;
use super::{Format, Marks, Summary, json_or_null, no_members};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format = Format {
    layout: SaeLayout::DictionaryLearning,
    name: "dictionary_learning",
    recognize,
    members: no_members,
    describe,
    read,
};

fn recognize(listing: &Listing, marks: Marks<'_>) -> std::result::Result<(), &'static str> {
    if listing.has("ae.pt") {
        return Ok(());
    }
    match listing.has("config.json").then(marks).flatten() {
        Some(marks) if marks.trainer && !marks.model_type => Ok(()),
        _ => Err("there is no ae.pt and no config.json with `trainer`"),
    }
}

fn describe(listing: &Listing) -> Summary {
    let settings = json_or_null(listing, "config.json");
    let layer = settings.pointer("/trainer/layer").and_then(serde_json::Value::as_u64);
    let named = text_at(&settings, &["/trainer/submodule_name", "/buffer/submodule_name"]);
    Summary {
        count: 1,
        kind: text_at(&settings, &["/trainer/dict_class"]),
        base_model: text_at(&settings, BASE_MODEL_KEYS),
        hooks: named.or_else(|| layer.map(|layer| format!("layer {layer}"))).into_iter().collect(),
        hooks_out: Vec::new(),
    }
}

fn read(listing: &Listing, _: &str) -> Result<LoadedSae> {
    let settings = Settings::read(listing, "config.json")?;
    let trainer = settings.inside("trainer");
    let file = WeightFile::open(&listing.dir.join("ae.pt"))?;
    let class = match trainer.text("dict_class")? {
        // The name of a class may come with its module.
        Some(class) => class.rsplit('.').next().unwrap_or(class).trim_matches(|c| "'<> ".contains(c)).to_owned(),
        None => guess_class(&file)?.to_owned(),
    };
    let parts = read_class(&class, &file, &trainer)?;
    file.finish()?;
    trainer.check_size("dict_size", parts.encoder.rows, "a number of features of")?;
    if class != "CrossCoder" {
        trainer.check_size("activation_dim", parts.encoder.cols, "the width")?;
    }
    let base_model = text_at(&json_or_null(listing, "config.json"), BASE_MODEL_KEYS);
    let buffer = settings.inside("buffer");
    let module = trainer.text("submodule_name")?.or(buffer.text("submodule_name")?).map(str::to_owned);
    let layer = trainer.size("layer")?;
    let mut facts =
        Facts { declared_kind: Some(class.clone()), context_size: buffer.size("ctx_len")?, ..Facts::default() };
    let site = match (&module, layer) {
        (Some(module), _) => site_of(module, base_model.as_deref()),
        (None, Some(layer)) => {
            facts.notes.push("the settings name a layer and no module; read as the residual stream after it".into());
            Some(Site::layer(layer, Point::ResidPost))
        }
        (None, None) => None,
    };
    if class == "CrossCoder" {
        facts.role = Some(SaeRole::Crosscoder);
        facts.notes.push("reads the same activation of several layers or models, concatenated".into());
    } else {
        facts.sites_in = site.into_iter().collect();
    }
    facts.hooks_in = module.or_else(|| layer.map(|layer| format!("layer {layer}"))).into_iter().collect();
    facts.base_model = base_model;
    parts.load(listing.dir.clone(), SaeLayout::DictionaryLearning, facts, &[&file])
}

/// The class of a state dict without settings, where the tensors' names leave no doubt.
fn guess_class(file: &WeightFile) -> Result<&'static str> {
    let classes = [
        ("gate_bias", "GatedAutoEncoder"),
        ("group_sizes", "MatryoshkaBatchTopKSAE"),
        ("W_enc", "JumpReluAutoEncoder"),
        ("bias", "AutoEncoder"),
        ("decoder.bias", "AutoEncoderNew"),
    ];
    let found =
        classes.into_iter().find(|(tensor, _)| file.has(tensor)).filter(|_| !file.has("k") || file.has("group_sizes"));
    found.map(|(_, class)| class).ok_or_else(|| {
        Error::invalid(
            &file.path,
            "there is no config.json with trainer.dict_class, and the tensors' names fit several classes",
            "download config.json too",
        )
    })
}

/// Encoder and decoder of `nn.Linear` layers: `encoder.weight [n, d]`, `decoder.weight [d, n]`.
fn linear(file: &WeightFile) -> Result<(MatrixView, MatrixView, usize, usize)> {
    let (n, d) = match file.shape("encoder.weight")? {
        [n, d] => (*n, *d),
        shape => {
            return Err(
                file.wrong("encoder.weight", format!("its shape is {shape:?}; expected [dict_size, activation_dim]"))
            );
        }
    };
    let encoder = file.matrix("encoder.weight", [("dict_size", n), ("activation_dim", d)])?;
    let decoder = file.matrix("decoder.weight", [("activation_dim", d), ("dict_size", n)])?.transposed();
    Ok((encoder, decoder, n, d))
}

/// Encoder and decoder of plain parameters: `W_enc [d, n]`, `W_dec [n, d]`.
fn native(file: &WeightFile) -> Result<(MatrixView, MatrixView, usize, usize)> {
    let (n, d) = (file.len("b_enc")?, file.len("b_dec")?);
    let encoder = file.matrix("W_enc", [("activation_dim", d), ("dict_size", n)])?.transposed();
    let decoder = file.matrix("W_dec", [("dict_size", n), ("activation_dim", d)])?;
    Ok((encoder, decoder, n, d))
}

fn read_class(class: &str, file: &WeightFile, trainer: &Settings) -> Result<Parts> {
    let features = |name: &str, n: usize| file.vector(name, ("dict_size", n));
    let width = |name: &str, d: usize| file.vector(name, ("activation_dim", d));
    match class {
        "AutoEncoder" => {
            let (encoder, decoder, n, d) = linear(file)?;
            let mut parts = Parts::relu(encoder, features("encoder.bias", n)?, decoder, width("bias", d)?, true);
            parts.fold_norms = true;
            Ok(parts)
        }
        "AutoEncoderNew" => {
            let (encoder, decoder, n, d) = linear(file)?;
            Ok(Parts::relu(encoder, features("encoder.bias", n)?, decoder, width("decoder.bias", d)?, false))
        }
        "GatedAutoEncoder" => {
            let (encoder, decoder, n, d) = linear(file)?;
            let mut parts = Parts::relu(encoder, vec![0.0; n], decoder, width("decoder_bias", d)?, true);
            parts.kind = SaeKind::Gated {
                gate_bias: features("gate_bias", n)?,
                magnitude_bias: features("mag_bias", n)?,
                log_scale: features("r_mag", n)?,
            };
            parts.fold_norms = true;
            Ok(parts)
        }
        "AutoEncoderTopK" | "BatchTopKSAE" => {
            let (encoder, decoder, n, d) = linear(file)?;
            let mut parts = Parts::relu(encoder, features("encoder.bias", n)?, decoder, width("b_dec", d)?, true);
            let k = read_k(file, trainer)?;
            parts.kind = if class == "AutoEncoderTopK" {
                // The threshold is another way to encode; the class selects the top k.
                file.ignore(&["threshold"]);
                SaeKind::TopK { k: k.ok_or_else(|| trainer.wrong("k", "it is missing"))?, by_decoder_norm: None }
            } else {
                SaeKind::JumpRelu { threshold: vec![batch_threshold(file)?; n] }
            };
            Ok(parts)
        }
        "MatryoshkaBatchTopKSAE" => {
            let (encoder, decoder, n, d) = native(file)?;
            let mut parts = Parts::relu(encoder, features("b_enc", n)?, decoder, width("b_dec", d)?, true);
            read_k(file, trainer)?;
            // Nested groups matter in training only.
            file.ignore(&["group_sizes"]);
            parts.kind = SaeKind::JumpRelu { threshold: vec![batch_threshold(file)?; n] };
            Ok(parts)
        }
        "JumpReluAutoEncoder" => {
            let (encoder, decoder, n, d) = native(file)?;
            let mut parts = Parts::relu(encoder, features("b_enc", n)?, decoder, width("b_dec", d)?, false);
            parts.kind = SaeKind::JumpRelu { threshold: features("threshold", n)? };
            parts.fold_norms = true;
            Ok(parts)
        }
        "CrossCoder" => crosscoder(file),
        other => Err(Error::unsupported(
            format!("{}: the class `{other}` of dictionary_learning is not supported", file.path.display()),
            "supported are AutoEncoder, AutoEncoderNew, GatedAutoEncoder, AutoEncoderTopK, BatchTopKSAE, \
             MatryoshkaBatchTopKSAE, JumpReluAutoEncoder and CrossCoder",
        )),
    }
}

/// k of the state dict, which must agree with the settings. Old files have it in the settings only.
fn read_k(file: &WeightFile, trainer: &Settings) -> Result<Option<usize>> {
    if !file.has("k") {
        return trainer.size("k");
    }
    let k = file.integer("k")?;
    trainer.check_size("k", k, "k")?;
    Ok(Some(k))
}

/// The threshold of all features, learned while training selected the top k of a batch.
fn batch_threshold(file: &WeightFile) -> Result<f32> {
    let threshold = file.scalar("threshold")?;
    if threshold < 0.0 {
        return Err(file.wrong(
            "threshold",
            format!("it is {threshold}: training ended before it was set, so the autoencoder depends on the batch"),
        ));
    }
    Ok(threshold)
}

/// `encoder.weight [layers, d, n]`, `decoder.weight [layers, n, d]`: pre-activations are summed
/// over layers, so the inputs of the layers are concatenated.
fn crosscoder(file: &WeightFile) -> Result<Parts> {
    let (layers, d, n) = match file.shape("encoder.weight")? {
        [layers, d, n] => (*layers, *d, *n),
        shape => {
            return Err(file.wrong(
                "encoder.weight",
                format!("its shape is {shape:?}; expected [layers, activation_dim, dict_size]"),
            ));
        }
    };
    let slices = file.slices("encoder.weight", [("layers", layers), ("activation_dim", d), ("dict_size", n)], 0)?;
    // Layers follow each other, so all are one matrix [layers · d, n].
    let stride = slices.get(1).map_or(d * n, |second| second.offset);
    let first = slices.into_iter().next().filter(|first| first.row_stride * d == stride);
    let Some(first) = first else { return Err(file.wrong("encoder.weight", "its layers do not follow each other")) };
    let encoder = MatrixView { rows: layers * d, ..first }.transposed();
    let decoders = file.slices("decoder.weight", [("layers", layers), ("dict_size", n), ("activation_dim", d)], 0)?;
    let biases = file.matrix("decoder.bias", [("layers", layers), ("activation_dim", d)])?;
    let decoder_biases = (0..layers).map(|layer| {
        let mut bias = vec![0.0; d];
        biases.row(layer, &mut bias);
        match bias.iter().all(|x| x.is_finite()) {
            true => Ok(bias),
            false => Err(file.wrong("decoder.bias", format!("layer {layer} has a NaN or infinity"))),
        }
    });
    let decoder_biases = decoder_biases.collect::<Result<Vec<_>>>()?;
    let encoder_bias = file.vector("encoder.bias", ("dict_size", n))?;
    Ok(Parts::with_decoders(encoder, encoder_bias, decoders, decoder_biases))
}
