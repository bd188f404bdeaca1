//! The object that `namespace()` returns: the only one whose attributes a template can set.
//!
//! It replaces minijinja's own, whose assignments cannot be checked.

use super::budget::Budget;
use minijinja::value::{Enumerator, Kwargs, Object};
use minijinja::{Error, ErrorKind, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Attributes by name.
#[derive(Debug, Default)]
pub(super) struct Namespace(Mutex<BTreeMap<Arc<str>, Value>>);

impl Namespace {
    /// The function `namespace(mapping, **attributes)`.
    pub(super) fn create(budget: &Budget, defaults: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
        let namespace = Namespace::default();
        if let Some(defaults) = defaults {
            for key in defaults.try_iter()? {
                let name = key.as_str().ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, "the names of a namespace must be strings")
                })?;
                namespace.set(budget, name, defaults.get_item(&key)?)?;
            }
        }
        for name in kwargs.args() {
            namespace.set(budget, name, kwargs.get(name)?)?;
        }
        kwargs.assert_all_used()?;
        Ok(Value::from_object(namespace))
    }

    /// The statement `{% set target.name = value %}`.
    pub(super) fn set_attribute(budget: &Budget, value: Value, target: &Value, name: &str) -> Result<(), Error> {
        match target.downcast_object_ref::<Namespace>() {
            Some(namespace) => namespace.set(budget, name, value),
            None => {
                let problem = format!("can only assign to namespaces, not {}", target.kind());
                Err(Error::new(ErrorKind::InvalidOperation, problem))
            }
        }
    }

    fn set(&self, budget: &Budget, name: &str, value: Value) -> Result<(), Error> {
        // Wrapped in a list, so that a namespace as the value itself is refused, too.
        budget.read(&Value::from(vec![value.clone()]))?;
        self.lock().insert(name.into(), value);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.lock().get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.lock().keys().cloned().map(Value::from).collect())
    }
}
