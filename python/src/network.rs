//! Builder for small networks, called by `pellucid.Network`.

use crate::array::to_engine;
use crate::errors::{ErrorKind, error, from_engine};
use crate::model::Model;
use pellucid_engine::architecture::{Activation, NormKind};
use pellucid_engine::program::{Network as Builder, Node};
use pellucid_engine::{self as engine, Weight, WeightKind, Weights};
use pellucid_kernels::{DType, Matrix, Pool};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::sync::Mutex;

/// A network under construction. Each part is named after its output edge.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Network {
    /// The builder (`None` once built), and the node of each part by name.
    state: Mutex<(Option<Builder>, HashMap<String, Node>)>,
}

#[pymethods]
impl Network {
    #[new]
    fn new() -> Network {
        Network { state: Mutex::new((Some(Builder::new()), HashMap::new())) }
    }

    /// Adds a part that reads the parts `inputs`; `options` depend on `kind`.
    fn add(
        &self,
        py: Python<'_>,
        kind: &str,
        name: &str,
        inputs: Vec<String>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (builder, nodes) = &mut *state;
        let Some(builder) = builder else {
            return Err(error(py, ErrorKind::Input, "the network is already built", Some("create another Network")));
        };
        let node = |at: usize| {
            let part = inputs.get(at).map_or("", String::as_str);
            let known = nodes.get(part).copied();
            known.ok_or_else(|| {
                let problem = format!("`{name}` reads {part:?}, but there is no such part");
                error(py, ErrorKind::Input, &problem, Some("name a part that was added before"))
            })
        };
        let number = |key: &str| match options.get_item(key)? {
            Some(value) => value.extract::<usize>(),
            None => Err(error(py, ErrorKind::Input, &format!("`{name}` needs the option {key}"), None)),
        };
        let flag = |key: &str| options.get_item(key)?.map_or(Ok(false), |value| value.extract::<bool>());
        let added = match kind {
            "input" => builder.input(name, number("width")?),
            "embedding" => builder.embedding(name, number("rows")?, number("width")?),
            "positions" => builder.positions(name, number("rows")?, number("width")?),
            "linear" => {
                let weight: Option<String> = options.get_item("weight")?.map(|weight| weight.extract()).transpose()?;
                let weight = weight.as_deref().unwrap_or(name);
                builder.linear_again(name, weight, node(0)?, number("outputs")?, flag("bias")?)
            }
            "activation" => {
                let function: String = options.get_item("function")?.map_or(Ok(String::new()), |f| f.extract())?;
                let activation = Activation::named(&function).ok_or_else(|| {
                    let known = Activation::all_names().collect::<Vec<_>>().join(", ");
                    let problem = format!("`{name}`: there is no activation {function:?}");
                    error(py, ErrorKind::Input, &problem, Some(&format!("the activations are {known}")))
                })?;
                builder.activation(name, node(0)?, activation)
            }
            "norm" => {
                let eps: f32 = options.get_item("eps")?.map_or(Ok(1e-5), |eps| eps.extract())?;
                let kind = if flag("rms")? { NormKind::Rms } else { NormKind::Layer };
                builder.norm(name, node(0)?, kind, eps, flag("bias")?)
            }
            "add" => builder.add(name, node(0)?, node(1)?),
            "multiply" => builder.multiply(name, node(0)?, node(1)?),
            "scale" => builder.scale(name, node(0)?, options.get_item("by")?.map_or(Ok(1.0), |by| by.extract())?),
            "concat" => {
                let parts = (0..inputs.len()).map(node).collect::<PyResult<Vec<Node>>>()?;
                builder.concat(name, &parts)
            }
            "attention" => {
                let (heads, kv_heads) = (number("heads")?, number("kv_heads")?);
                builder.attention(name, node(0)?, node(1)?, node(2)?, heads, kv_heads)
            }
            other => return Err(error(py, ErrorKind::Input, &format!("unknown kind of part {other:?}"), None)),
        };
        let added = added.map_err(|fault| from_engine(py, &fault))?;
        nodes.insert(name.to_string(), added);
        Ok(())
    }

    /// Builds the model from weights by name: matrices `[outputs, inputs]`, embedding tables
    /// `[rows, width]`, vectors.
    fn build(&self, py: Python<'_>, name: String, weights: &Bound<'_, PyDict>) -> PyResult<Model> {
        let builder = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0.take();
        let builder = builder.ok_or_else(|| {
            error(py, ErrorKind::Input, "the network is already built", Some("create another Network"))
        })?;
        let program = builder.build().map_err(|fault| from_engine(py, &fault))?;
        let known: Vec<String> = program.weights().iter().map(|spec| spec.name.clone()).collect();
        for (key, _) in weights {
            let key: String = key.extract()?;
            if !known.contains(&key) {
                let hint = format!("the weights are {}", known.join(", "));
                return Err(error(py, ErrorKind::Input, &format!("no part has a weight {key:?}"), Some(&hint)));
            }
        }
        let mut packed = Vec::with_capacity(known.len());
        for spec in program.weights() {
            let weight = weights.get_item(&spec.name)?.ok_or_else(|| {
                let problem = format!("the weight {:?} of shape {:?} is missing", spec.name, spec.shape);
                error(py, ErrorKind::Input, &problem, Some("give an array for each weight"))
            })?;
            let array = to_engine(&weight)?;
            if array.shape() != spec.shape {
                let problem = format!("the weight {:?} has shape {:?}, not {:?}", spec.name, array.shape(), spec.shape);
                return Err(error(py, ErrorKind::Input, &problem, Some("matrices are [outputs, inputs]")));
            }
            packed.push(match spec.kind {
                WeightKind::Vector => Weight::Vector(array.values().to_vec()),
                WeightKind::Matrix | WeightKind::Table => {
                    let [rows, cols] = spec.shape[..] else { unreachable!("matrices have two axes") };
                    let row = |row: usize, out: &mut [f32]| out.copy_from_slice(array.row(row));
                    Weight::Matrix(Matrix::pack(&Pool::global(), rows, cols, DType::F32, &row))
                }
            });
        }
        Ok(Model::from_network(name, engine::Model::new(program, Weights::new(packed))))
    }
}
