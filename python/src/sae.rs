//! Sparse autoencoders: files, arithmetic, attaching. `pellucid/saes.py` is the class around it.

use crate::array::{Array, to_engine};
use crate::errors::{ErrorKind, error, from_engine, from_models, guarded};
use crate::model::Model;
use pellucid_engine::sae::Sae as Weights;
use pellucid_kernels::{Matrix, Pool};
use pellucid_models::LoadedModel;
use pellucid_models::attach::{AttachOptions, SaeCheck};
use pellucid_models::sae::{LoadedSae, read_named_sae};
use pyo3::prelude::*;

/// A sparse autoencoder or transcoder.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Sae(LoadedSae);

impl Sae {
    fn weights(&self) -> &Weights {
        &self.0.sae
    }

    /// Checks an array `[…, width]`; returns its leading shape and its elements.
    fn rows(py: Python<'_>, array: &Bound<'_, PyAny>, width: usize, of: &str) -> PyResult<(Vec<usize>, Vec<f32>)> {
        let array = to_engine(array)?;
        match array.shape().split_last() {
            Some((&last, leading)) if last == width => Ok((leading.to_vec(), array.values().to_vec())),
            _ => {
                let problem = format!("an array of shape {:?}, but this SAE has {width} {of}", array.shape());
                Err(error(py, ErrorKind::Input, &problem, Some("the last axis must have that length")))
            }
        }
    }
}

fn shaped(mut leading: Vec<usize>, width: usize, values: Vec<f32>) -> Array {
    leading.push(width);
    Array(pellucid_engine::Array::new(leading, values))
}

fn whole(matrix: &Matrix) -> Array {
    let mut values = vec![0.0; matrix.rows() * matrix.cols()];
    values.chunks_exact_mut(matrix.cols()).enumerate().for_each(|(row, line)| matrix.row(row, line));
    Array(pellucid_engine::Array::new(vec![matrix.rows(), matrix.cols()], values))
}

#[pymethods]
impl Sae {
    /// Reads an autoencoder of any published format; `builtin` is the one of the built-in model.
    #[staticmethod]
    fn open(py: Python<'_>, path: &str) -> PyResult<Sae> {
        Ok(Sae(guarded(py, || read_named_sae(path))?.map_err(|fault| from_models(py, &fault))?))
    }

    /// Its description as JSON.
    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        serde_json::to_string(&self.0.info).map_err(|fault| error(py, ErrorKind::Input, &fault.to_string(), None))
    }

    /// `(d_in, d_out, n_features)`.
    #[getter]
    fn sizes(&self) -> (usize, usize, usize) {
        (self.weights().d_in(), self.weights().d_out(), self.weights().n_features())
    }

    /// Activations `[…, n_features]` of inputs `[…, d_in]`; with `pre`, before the activation
    /// function.
    fn encode(&self, py: Python<'_>, x: &Bound<'_, PyAny>, pre: bool) -> PyResult<Array> {
        let sae = self.weights();
        let (leading, x) = Sae::rows(py, x, sae.d_in(), "input channels")?;
        let mut acts = vec![0.0; x.len() / sae.d_in() * sae.n_features()];
        py.detach(|| {
            let pool = Pool::global();
            sae.encode(&pool, &x, &mut acts);
            if !pre {
                sae.activate(&pool, &mut acts);
            }
        });
        Ok(shaped(leading, sae.n_features(), acts))
    }

    /// Number of layers that it writes, each with a decoder of its own.
    #[getter]
    fn n_targets(&self) -> usize {
        self.weights().decoders.len()
    }

    /// Reconstruction `[…, d_out]` of activations `[…, n_features]` by one of its decoders. `x` are
    /// the inputs, which an autoencoder that normalizes each token or has a skip path needs.
    fn decode(
        &self,
        py: Python<'_>,
        acts: &Bound<'_, PyAny>,
        x: Option<&Bound<'_, PyAny>>,
        target: usize,
    ) -> PyResult<Array> {
        let sae = self.weights();
        if target >= sae.decoders.len() {
            let problem = format!("there is no decoder {target}: this SAE writes {} layers", sae.decoders.len());
            return Err(error(py, ErrorKind::Input, &problem, Some("targets count from 0")));
        }
        let (leading, acts) = Sae::rows(py, acts, sae.n_features(), "features")?;
        let tokens = acts.len() / sae.n_features();
        let x = match x {
            Some(x) => Sae::rows(py, x, sae.d_in(), "input channels")?.1,
            None if sae.decodes_alone() => vec![0.0; tokens * sae.d_in()],
            None => {
                let problem = "this SAE normalizes each input or has a skip path, so decoding needs the inputs";
                return Err(error(py, ErrorKind::Input, problem, Some("pass them: sae.decode(acts, x)")));
            }
        };
        if x.len() != tokens * sae.d_in() {
            let problem = format!("{} inputs for {tokens} tokens of activations", x.len() / sae.d_in());
            return Err(error(py, ErrorKind::Input, &problem, Some("pass one input for each token")));
        }
        let mut recon = vec![0.0; tokens * sae.d_out()];
        py.detach(|| {
            let scales = sae.token_scales(&x);
            sae.decode(&Pool::global(), target, &acts, &scales, &x, &mut recon);
        });
        Ok(shaped(leading, sae.d_out(), recon))
    }

    /// The encoder, one row per feature.
    fn encoder(&self) -> Array {
        whole(&self.weights().encoder)
    }

    /// The decoder, one row per feature.
    fn decoder(&self) -> Array {
        whole(&self.weights().decoders[0])
    }

    /// Encoder bias and decoder bias.
    fn biases(&self) -> (Vec<f32>, Vec<f32>) {
        (self.weights().encoder_bias.clone(), self.weights().decoder_biases[0].clone())
    }
}

/// A model with attached autoencoders, and warnings.
type Attached = (Model, Vec<String>);

/// A copy of a model with an autoencoder attached.
#[pyfunction]
pub fn attach_sae(
    py: Python<'_>,
    model: &Model,
    sae: &Sae,
    site: Option<String>,
    unchecked: bool,
) -> PyResult<Attached> {
    attach(py, model, AttachOptions { site, unchecked }, |loaded, options| {
        Ok(loaded.attach_sae(&sae.0, options)?.into_iter().collect())
    })
}

/// A copy of a model with the autoencoder at a path attached; `builtin` is the one of the built-in
/// model. A cross-layer transcoder is the path of its directory.
#[pyfunction]
pub fn attach_path(
    py: Python<'_>,
    model: &Model,
    path: &str,
    site: Option<String>,
    unchecked: bool,
) -> PyResult<Attached> {
    attach(py, model, AttachOptions { site, unchecked }, |loaded, options| {
        Ok(loaded.attach_path(path, options)?.into_iter().filter_map(|record| record.check).collect())
    })
}

fn attach(
    py: Python<'_>,
    model: &Model,
    options: AttachOptions,
    run: impl FnOnce(&mut LoadedModel, &AttachOptions) -> pellucid_models::Result<Vec<SaeCheck>> + Send,
) -> PyResult<Attached> {
    let mut loaded = model.loaded(py)?.clone();
    let checks = guarded(py, || run(&mut loaded, &options))?.map_err(|fault| from_models(py, &fault))?;
    Ok((model.with_loaded(loaded), checks.iter().filter_map(SaeCheck::warning).collect()))
}

/// A copy of a model without the autoencoder at a site, or without any.
#[pyfunction]
pub fn detach_sae(py: Python<'_>, model: &Model, site: Option<&str>) -> PyResult<Model> {
    let mut loaded = model.loaded(py)?.clone();
    loaded.model = match site {
        None => loaded.model.detach_all(),
        Some(text) => {
            let sites = loaded.model.find(text).map_err(|fault| from_engine(py, &fault))?.sites;
            let [site] = sites[..] else {
                let problem = format!("{text:?} names {} sites", sites.len());
                return Err(error(py, ErrorKind::Site, &problem, Some("name one, or omit the site to detach all")));
            };
            loaded.model.detach(site).map_err(|fault| from_engine(py, &fault))?
        }
    };
    Ok(model.with_loaded(loaded))
}

/// The attached autoencoders as a JSON list: path, site, number of features, result of the test.
#[pyfunction]
pub fn attached_saes(py: Python<'_>, model: &Model) -> PyResult<String> {
    serde_json::to_string(&model.saes()).map_err(|fault| error(py, ErrorKind::Input, &fault.to_string(), None))
}
