//! Chains of ops: names to ops, and the check that every input is produced by an earlier op.

use super::batch::DatasetColumns;
use super::spec::{Field, Op, Place};
use super::{COMPOSITES, Registry, normalize};
use crate::config::SessionConfig;
use crate::store::ColumnOrigin;
use crate::table::DataType;
use pellucid_models::{Error, Result};
use std::sync::Arc;

/// A checked chain of ops.
#[derive(Clone)]
pub struct Chain {
    ops: Vec<Arc<dyn Op>>,
}

impl Chain {
    /// Finds the ops of a chain: each part is an op, a composite, or several joined by dots.
    pub fn parse(parts: &[&str], registry: &Registry) -> Result<Chain> {
        let mut ops = Vec::new();
        for part in parts {
            add(part, registry, &mut ops)?;
        }
        if ops.is_empty() {
            return Err(Error::usage("the chain of ops is empty", "name at least one op, such as logit_diffs_base"));
        }
        Ok(Chain { ops })
    }

    /// The ops, in order.
    pub fn ops(&self) -> &[Arc<dyn Op>] {
        &self.ops
    }

    /// The names of the ops, joined by dots.
    pub fn name(&self) -> String {
        self.ops.iter().map(|op| op.spec().name.as_ref()).collect::<Vec<_>>().join(".")
    }

    /// Whether an op needs an autoencoder, or a backward pass.
    pub fn needs(&self) -> super::Needs {
        self.ops.iter().fold(super::Needs::default(), |needs, op| super::Needs {
            saes: needs.saes || op.spec().needs.saes,
            gradients: needs.gradients || op.spec().needs.gradients,
        })
    }

    /// Whether an op may read the autoencoders of a session: by itself, or at sites that the
    /// options of the session name.
    pub(crate) fn reads_saes(&self, config: &SessionConfig) -> bool {
        let options = serde_json::to_string(&(&config.concept, &config.intervention)).unwrap_or_default();
        options.contains("sae") || self.ops.iter().any(|op| op.reads_saes())
    }

    /// Whether an op of this name is in the chain.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.ops.iter().any(|op| op.spec().name == name)
    }

    /// Checks that every op has its inputs: from the dataset, or from an earlier op.
    pub fn check(&self, has_labels: bool, saes: usize, registry: &Registry) -> Result<()> {
        let mut known: Vec<String> = ["input", "prompts", "tokens", "example", "batch"].map(String::from).to_vec();
        if has_labels {
            known.push("labels".into());
        }
        for (index, op) in self.ops.iter().enumerate() {
            let spec = op.spec();
            let place = format!("op {} of the chain, `{}`,", index + 1, spec.name);
            if spec.needs.saes && saes == 0 {
                return Err(Error::usage(format!("{place} needs an SAE"), "add a [[saes]] table with its `path`"));
            }
            for input in spec.inputs.iter().filter(|input| !input.optional) {
                let key = key(input);
                if !known.contains(&key) {
                    return Err(missing(&place, input, registry));
                }
            }
            known.extend(spec.outputs.iter().map(key));
        }
        Ok(())
    }

    /// The columns that the chain stores, with the op that writes each.
    pub fn columns(&self, of_dataset: DatasetColumns) -> Vec<ColumnOrigin> {
        let own = |table: &str, name: &str, dtype| ColumnOrigin {
            table: table.into(),
            name: name.into(),
            dtype,
            op: "dataset".into(),
        };
        let mut columns = vec![own("examples", "example", DataType::Int64), own("examples", "batch", DataType::Int64)];
        columns.extend(of_dataset.prompts.then(|| own("examples", "prompts", DataType::Text)));
        columns.push(own("examples", "tokens", DataType::Int64List));
        columns.extend(of_dataset.pads.then(|| own("examples", "pads", DataType::Int64)));
        if of_dataset.labels {
            columns.push(own("examples", "label", DataType::Int64));
            columns.push(own("examples", "label_tokens", DataType::Int64List));
            columns.push(own("examples", "label_lengths", DataType::Int64List));
        }
        for op in &self.ops {
            for output in op.spec().outputs.iter() {
                let Some(dtype) = output.dtype else { continue };
                let table = if output.place == Place::Latent { "latents" } else { "examples" };
                if table == "latents" && !columns.iter().any(|column| column.table == "latents") {
                    let key = [("example", DataType::Int64), ("batch", DataType::Int64), ("hook", DataType::Text)];
                    columns.extend(key.map(|(name, dtype)| own("latents", name, dtype)));
                    columns.push(own("latents", "latent", DataType::Int64));
                }
                let op = op.spec().name.to_string();
                let origin = ColumnOrigin { table: table.into(), name: output.name.to_string(), dtype, op };
                match columns.iter_mut().find(|column| column.table == table && column.name == output.name) {
                    Some(known) => *known = origin,
                    None => columns.push(origin),
                }
            }
        }
        columns
    }
}

/// Fields of latents and of examples may share a name.
fn key(field: &Field) -> String {
    if field.place == Place::Latent { format!("latents.{}", field.name) } else { field.name.to_string() }
}

fn missing(place: &str, input: &Field, registry: &Registry) -> Error {
    let wanted = key(input);
    let makes = |op: &&Arc<dyn Op>| op.spec().outputs.iter().any(|output| key(output) == wanted);
    let producers: Vec<String> =
        registry.ops().iter().filter(makes).map(|op| format!("`{}`", op.spec().name)).collect();
    let remedy = match (input.name.as_ref(), producers.is_empty()) {
        ("labels", _) => "set `dataset.labels` to the texts of the labels".to_string(),
        (_, true) => "no op of this session produces it; check its name".to_string(),
        (_, false) => format!("put an op before it that produces it: {}", producers.join(", ")),
    };
    Error::usage(format!("{place} needs `{wanted}`, which nothing before it produces"), remedy)
}

fn add(part: &str, registry: &Registry, ops: &mut Vec<Arc<dyn Op>>) -> Result<()> {
    let name = normalize(part);
    if let Some(op) = registry.find(&name) {
        ops.push(op);
        return Ok(());
    }
    let is_named = |composite: &&super::Composite| composite.name == name || composite.aliases.contains(&name.as_str());
    if let Some(composite) = COMPOSITES.iter().find(is_named) {
        return add(composite.chain, registry, ops);
    }
    match part.contains('.') {
        true => part.split('.').try_for_each(|part| add(part, registry, ops)),
        false => Err(unknown(part, &name, registry)),
    }
}

fn unknown(part: &str, name: &str, registry: &Registry) -> Error {
    let names = registry.ops().iter().map(|op| op.spec().name.to_string());
    let names = names.chain(COMPOSITES.iter().map(|composite| composite.name.to_string()));
    let mut near: Vec<(usize, String)> = names.map(|other| (strsim::levenshtein(name, &other), other)).collect();
    near.sort();
    let near: Vec<String> = near.into_iter().take(3).map(|(_, name)| format!("`{name}`")).collect();
    Error::usage(format!("there is no op `{part}`"), format!("similar ops are {}", near.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chain: &str) -> Result<Chain> {
        Chain::parse(&[chain], &Registry::default())
    }

    fn problem(chain: &str, labels: bool, saes: usize) -> (String, String) {
        let checked = parse(chain).and_then(|chain| chain.check(labels, saes, &Registry::default()));
        let error = checked.expect_err("an error");
        (error.to_string(), error.remedy().map(|remedy| remedy.to_string()).unwrap_or_default())
    }

    #[test]
    fn composites_and_aliases_name_the_same_chains() {
        let chain = parse("logit_diffs_latent").expect("a composite").name();
        assert_eq!(parse("logit_diffs_sae").expect("its old name").name(), chain);
        assert_eq!(parse("Logit-Diffs/SAE").expect("normalized").name(), chain);
        assert_eq!(
            parse("labels_to_ids.model_cache_forward.logit_diffs_cache.sae_correct_acts").expect("aliases").name(),
            chain
        );
        for composite in COMPOSITES {
            let chain = parse(composite.name).unwrap_or_else(|error| panic!("{}: {error}", composite.name));
            chain.check(true, 1, &Registry::default()).unwrap_or_else(|error| panic!("{}: {error}", composite.name));
        }
    }

    #[test]
    fn a_chain_without_its_inputs_is_refused_with_the_op_that_makes_them() {
        let (error, remedy) = problem("labels_to_ids.logit_diffs", true, 0);
        assert!(error.contains("op 2 of the chain, `logit_diffs`, needs `answer_logits`"), "{error}");
        assert!(remedy.contains("`model_fwd`"), "{remedy}");
        let (error, remedy) = problem("logit_diffs_base", false, 0);
        assert!(error.contains("needs `labels`") && remedy.contains("dataset.labels"), "{error} {remedy}");
        let (error, remedy) = problem("logit_diffs_sae", true, 0);
        assert!(error.contains("needs an SAE") && remedy.contains("[[saes]]"), "{error} {remedy}");
        let (error, remedy) = problem("logit_dif", true, 0);
        assert!(error.contains("no op `logit_dif`") && remedy.contains("`logit_diffs`"), "{error} {remedy}");
    }

    #[test]
    fn columns_name_the_op_that_writes_them_last() {
        let columns = parse("logit_diffs_base").expect("a chain");
        let columns = columns.columns(DatasetColumns { prompts: true, labels: true, pads: false });
        let origin = |name: &str| columns.iter().find(|column| column.name == name).map(|column| column.op.as_str());
        assert_eq!(origin("answer_logits"), Some("logit_diffs"));
        assert_eq!(origin("answer_indices"), Some("model_fwd"));
        assert_eq!(origin("tokens"), Some("dataset"));
        assert!(columns.iter().all(|column| column.table == "examples"));
    }
}
