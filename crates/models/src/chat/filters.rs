//! The filters and operators of templates, with limits on what they make.
//!
//! Every filter charges the budget for what it reads and makes. Those whose result can be much
//! longer than their input check its length first.

use super::budget::Budget;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use std::sync::Arc;

/// Limit of a width or precision in a format string.
const MAX_FORMAT_WIDTH: u64 = 10_000;

/// Registers the filters. Filters of minijinja that are not listed do not exist.
pub(super) fn add_all(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    let mut add = |name: &'static str, filter: Value| {
        let budget = Arc::clone(budget);
        let guarded = move |state: &mut State, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            check_result(name, &args, &budget)?;
            args.iter().try_for_each(|value| budget.read(value))?;
            let result = filter.call(state, &args)?;
            budget.accept(&result)?;
            Ok(result)
        };
        environment.add_filter(name, guarded);
    };
    macro_rules! add {
        ($($name:ident),* $(,)?) => { $(add(stringify!($name), Value::from_function(filters::$name));)* };
    }
    add!(
        safe, escape, lower, upper, title, capitalize, replace, length, dictsort, items, reverse, trim, join, split,
        lines, default, round, abs, int, float, attr, first, last, min, max, sort, list, string, bool, batch, slice,
        sum, indent, select, reject, selectattr, rejectattr, map, groupby, unique, chain, zip, pprint, format,
    );
    add("e", Value::from_function(filters::escape));
    add("d", Value::from_function(filters::default));
    add("count", Value::from_function(filters::length));
    let for_json = Arc::clone(budget);
    add(
        "tojson",
        Value::from_function(move |value: Value, indent: Option<usize>, kwargs: Kwargs| {
            super::environment::tojson(&for_json, value, indent, kwargs)
        }),
    );
}

/// Checks the length of the result of a filter or method before it is called.
pub(super) fn check_result(name: &str, args: &[Value], budget: &Budget) -> Result<(), Error> {
    let text = |index: usize| args.get(index).and_then(Value::as_str).unwrap_or_default();
    let keyword =
        |name: &str| args.last().and_then(|last| last.get_attr(name).ok()).filter(|value| !value.is_undefined());
    // A positional argument, or the keyword argument of this name.
    let number = |index: usize, name: &str| {
        let value = args.get(index).filter(|value| value.is_number()).cloned().or_else(|| keyword(name));
        value.and_then(|value| value.as_usize()).unwrap_or(0) as u64
    };
    match name {
        "indent" => {
            let lines = text(0).matches('\n').count() as u64 + 1;
            budget.check_bytes(number(1, "width").saturating_mul(lines))
        }
        "batch" => budget.check_elements(number(1, "linecount")),
        "slice" => budget.check_elements(number(1, "slices")),
        "format" => {
            let numbers = text(0).split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let is_large = |digits: &str| digits.parse::<u64>().map_or(true, |width| width > MAX_FORMAT_WIDTH);
            let widths = numbers.clone().filter(|digits| digits.len() > 1).count() as u64;
            // `%*d` takes the width from an argument.
            if numbers.clone().any(is_large) || text(0).contains('*') {
                return Err(too_wide());
            }
            budget.check_bytes(widths.saturating_mul(MAX_FORMAT_WIDTH))
        }
        "replace" => {
            let count = text(0).matches(text(1)).count() as u64;
            budget.check_bytes(count.saturating_mul(text(2).len() as u64).saturating_add(text(0).len() as u64))
        }
        "join" => {
            let separator = match args.get(1).and_then(Value::as_str) {
                Some(separator) => separator.len(),
                None => keyword("d").and_then(|value| value.as_str().map(str::len)).unwrap_or(0),
            };
            let items = args.first().map_or(0, count_items);
            budget.check_bytes(items.saturating_mul(separator as u64))
        }
        _ => Ok(()),
    }
}

/// Methods of Python's strings, maps and lists.
pub(super) fn call_method(
    budget: &Budget,
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let all: Vec<Value> = match method {
        // `separator.join(items)`
        "join" => args.iter().take(1).chain([value]).cloned().collect(),
        _ => std::iter::once(value).chain(args).cloned().collect(),
    };
    check_result(method, &all, budget)?;
    all.iter().try_for_each(|value| budget.read(value))?;
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// The operator `*`: numbers, or a string or list times an integer.
pub(super) fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let refused = |problem: &str| Error::new(ErrorKind::InvalidOperation, problem.to_owned());
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let is_repeatable = |value: &Value| value.as_str().is_some() || is_list(value);
    if let Some((value, count)) = [(left, right), (right, left)].into_iter().find(|(value, _)| is_repeatable(value)) {
        // As in Python, a negative count gives an empty result.
        let count = match count.as_usize() {
            Some(count) => count,
            None if count.as_i64().is_some_and(|count| count < 0) => 0,
            None => return Err(refused("strings and lists can only be multiplied with integers")),
        };
        if let Some(text) = value.as_str() {
            budget.check_bytes((text.len() as u64).saturating_mul(count as u64))?;
            return Ok(Value::from(text.repeat(count)));
        }
        budget.check_elements(count_items(value).saturating_mul(count as u64))?;
        let items: Vec<Value> = value.try_iter()?.collect();
        let repeated: Vec<Value> = (0..count).flat_map(|_| items.iter().cloned()).collect();
        return Ok(if value.is_tuple() { Value::from(Tuple::from(repeated)) } else { Value::from(repeated) });
    }
    let is_integer = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    if is_integer(left) && is_integer(right) {
        let product = i128::try_from(left.clone())?.checked_mul(i128::try_from(right.clone())?);
        let product = product.ok_or_else(|| refused("a product of integers is too large"))?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    let types = || format!("tried to use * operator on unsupported types {} and {}", left.kind(), right.kind());
    let number = |value: &Value| f64::try_from(value.clone()).map_err(|_| refused(&types()));
    Ok(Value::from(number(left)? * number(right)?))
}

fn count_items(value: &Value) -> u64 {
    let counted = || value.try_iter().map_or(0, |items| items.take(1 << 20).count());
    value.as_str().map_or_else(|| value.len().unwrap_or_else(counted), str::len) as u64
}

fn too_wide() -> Error {
    let problem = format!(
        "{}a format string has a width or precision above {MAX_FORMAT_WIDTH}, or takes it from an argument",
        super::budget::EXCEEDED
    );
    Error::new(ErrorKind::InvalidOperation, problem)
}
