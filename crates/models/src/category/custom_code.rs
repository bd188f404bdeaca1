//! The Python code that comes with a model. It is listed, never executed.

use crate::listing::Listing;
use serde_json::Value;

/// Python files in the directory, and those that `auto_map` names. An `__init__.py` only makes a
/// package of the directory.
pub(crate) fn custom_code(listing: &Listing, config: Option<&Value>) -> Vec<String> {
    let mut files: Vec<String> =
        listing.files_with_suffix(".py").filter(|file| *file != "__init__.py").map(str::to_owned).collect();
    let map = config.and_then(|config| config.get("auto_map")?.as_object());
    for class in map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str) {
        // `owner/name--modeling_x.Class`: the code of another repository.
        let (file, _) = class.rsplit_once('.').unwrap_or((class, ""));
        let file = format!("{file}.py");
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}
