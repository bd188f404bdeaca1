//! The names of a server: models, their adapters, aliases.

use super::spec::Description;
use crate::error::{Error, Result};
use crate::options::Alias;
use std::collections::BTreeMap;

/// The model and the adapter of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Number of the model.
    pub model: usize,
    pub adapter: Option<String>,
}

/// All names with their targets.
pub struct Names {
    targets: BTreeMap<String, Target>,
    /// The names that are listed: models, adapters, aliases.
    listed: Vec<String>,
}

impl Names {
    pub fn new(models: &[(&str, &Description)], aliases: &[Alias]) -> Result<Names> {
        let mut names = Names { targets: BTreeMap::new(), listed: Vec::new() };
        for (model, (id, _)) in models.iter().enumerate() {
            let target = Target { model, adapter: None };
            names.add((*id).to_owned(), target, format!("two models are named {id}"), "give each model once")?;
        }
        for (model, (id, description)) in models.iter().enumerate() {
            for adapter in &description.adapters {
                let (name, target) = (format!("{id}:{adapter}"), Target { model, adapter: Some(adapter.clone()) });
                let problem = format!("the model {id} has two adapters named {adapter}");
                names.add(name, target, problem, "give each adapter another name")?;
            }
        }
        for alias in aliases {
            let target = names.of_alias(alias, models)?;
            let problem = format!("the name {} is taken", alias.name);
            names.add(alias.name.clone(), target, problem, "give each alias another name")?;
        }
        // An adapter is also found by its bare name, if no other model has one of that name.
        let mut bare: BTreeMap<&str, Option<Target>> = BTreeMap::new();
        for (model, (_, description)) in models.iter().enumerate() {
            for adapter in &description.adapters {
                let target = Some(Target { model, adapter: Some(adapter.clone()) });
                bare.entry(adapter).and_modify(|other| *other = None).or_insert(target);
            }
        }
        for (name, target) in bare {
            if let Some(target) = target {
                names.targets.entry(name.to_owned()).or_insert(target);
            }
        }
        Ok(names)
    }

    fn add(&mut self, name: String, target: Target, problem: String, remedy: &str) -> Result<()> {
        if self.targets.insert(name.clone(), target).is_some() {
            return Err(Error::Options { problem, remedy: remedy.into() });
        }
        self.listed.push(name);
        Ok(())
    }

    fn of_alias(&self, alias: &Alias, models: &[(&str, &Description)]) -> Result<Target> {
        let Some(model) = &alias.model else { return Ok(Target { model: 0, adapter: None }) };
        self.targets.get(model).cloned().ok_or_else(|| {
            let ids: Vec<&str> = models.iter().map(|(id, _)| *id).collect();
            let problem = format!("the alias {} names the model {model}, which is not served", alias.name);
            Error::Options { problem, remedy: format!("the models are {}", ids.join(", ")) }
        })
    }

    /// The target of a name.
    pub fn find(&self, name: &str) -> Option<&Target> {
        self.targets.get(name)
    }

    /// The names that are listed, with their targets.
    pub fn listed(&self) -> impl Iterator<Item = (&str, &Target)> {
        self.listed.iter().filter_map(|name| Some((name.as_str(), self.targets.get(name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(adapters: &[&str]) -> Description {
        let adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
        Description { family: "llama".into(), layers: 1, context: None, storage: "f32".into(), bytes: 1, adapters }
    }

    #[test]
    fn adapters_are_found_by_model_and_name_and_alone_if_unique() {
        let (a, b) = (description(&["german", "both"]), description(&["both", "a"]));
        let aliases = ["chat=b:both".parse().expect("an alias"), "gpt".parse().expect("an alias")];
        let names = Names::new(&[("a", &a), ("b", &b)], &aliases).expect("names");
        let find = |name: &str| names.find(name).map(|target| (target.model, target.adapter.as_deref()));
        assert_eq!(find("a"), Some((0, None)), "a model goes before an adapter of its name");
        assert_eq!(find("german"), Some((0, Some("german"))));
        assert_eq!((find("a:both"), find("both")), (Some((0, Some("both"))), None));
        assert_eq!((find("chat"), find("gpt")), (Some((1, Some("both"))), Some((0, None))));
        let listed: Vec<&str> = names.listed().map(|(name, _)| name).collect();
        assert_eq!(listed, ["a", "b", "a:german", "a:both", "b:both", "b:a", "chat", "gpt"]);
    }

    #[test]
    fn names_are_unique_and_aliases_have_targets() {
        let a = description(&["x"]);
        let with = |aliases: &[&str]| {
            let aliases: Vec<Alias> = aliases.iter().map(|alias| alias.parse().expect("an alias")).collect();
            Names::new(&[("a", &a)], &aliases).map(drop)
        };
        assert!(with(&["x", "y=a:x"]).is_ok());
        assert!(with(&["a"]).is_err() && with(&["z=b"]).is_err() && with(&["y", "y"]).is_err());
        assert!(Names::new(&[("a", &a), ("a", &a)], &[]).is_err());
    }
}
