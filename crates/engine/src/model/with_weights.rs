//! Models with some weights replaced: pruning, orthogonalization, rank-one edits.

use super::Model;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::program::WeightSpec;
use crate::weights::{Weight, WeightId, WeightKind};
use pellucid_kernels::{DType, Matrix};
use std::sync::Arc;

impl Model {
    /// Returns this model with other values for some weights, by name; this model is unchanged. All
    /// other weights are shared, and so are attached autoencoders.
    ///
    /// Names, shapes and values are those of [`Program::weights`](crate::Program::weights) and
    /// [`Weights::floats`](crate::Weights::floats): a matrix is `[outputs, inputs]`, and the gain
    /// of a norm is the factor that it applies, also in families that store `gain - 1`. Replaced
    /// weights are stored as f32.
    ///
    /// # Errors
    /// An unknown or repeated name, another shape, or an element that is NaN or infinite.
    ///
    /// ```
    /// use pellucid_engine::{Array, Model};
    /// fn without_mlp_of_layer_0(model: &Model) -> pellucid_engine::Result<Model> {
    ///     let spec = model.program().weights().iter().find(|spec| spec.name == "layers.0.mlp.down").unwrap();
    ///     let zeros = Array::new(spec.shape.clone(), vec![0.0; spec.shape.iter().product()]);
    ///     model.with_weights(&[("layers.0.mlp.down", zeros)])
    /// }
    /// ```
    pub fn with_weights(&self, weights: &[(&str, Array)]) -> Result<Model> {
        let mut replaced: Vec<(WeightId, Weight)> = Vec::with_capacity(weights.len());
        for (name, array) in weights {
            let id = self.program.weight_named(name).ok_or_else(|| self.unknown_weight(name))?;
            if replaced.iter().any(|(other, _)| *other == id) {
                return Err(Error::input(format!("the weight `{name}` is given twice"), "give each weight once"));
            }
            let spec = self.program.weight(id);
            check(spec, array)?;
            replaced.push((id, self.pack(spec, array)));
        }
        Ok(Model { weights: Arc::new(self.weights.replaced(replaced)), ..self.clone() })
    }

    fn unknown_weight(&self, name: &str) -> Error {
        let nearest = self.program.nearest_weight(name).map(|nearest| format!("did you mean `{nearest}`?"));
        Error::input(format!("no weight is called `{name}`"), nearest.unwrap_or_default())
    }

    fn pack(&self, spec: &WeightSpec, array: &Array) -> Weight {
        match spec.kind {
            WeightKind::Vector => Weight::Vector(array.values().to_vec()),
            WeightKind::Matrix | WeightKind::Table => {
                let (rows, cols) = (array.shape()[0], array.shape()[1]);
                let fill = |row: usize, out: &mut [f32]| out.copy_from_slice(array.row(row));
                Weight::Matrix(Matrix::pack(self.pool(), rows, cols, DType::F32, &fill))
            }
        }
    }
}

fn check(spec: &WeightSpec, array: &Array) -> Result<()> {
    let name = &spec.name;
    if array.shape() != spec.shape {
        let problem = format!("the weight `{name}` has shape {:?}, and the array {:?}", spec.shape, array.shape());
        return Err(Error::input(problem, "matrices are [outputs, inputs]: transpose or reshape the array"));
    }
    match array.values().iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let value = array.values()[at];
            let index = match spec.shape[..] {
                [_, columns] => format!("[{}, {}]", at / columns, at % columns),
                _ => format!("[{at}]"),
            };
            Err(Error::input(format!("the new weight `{name}` is {value} at {index}"), "weights are finite numbers"))
        }
    }
}
