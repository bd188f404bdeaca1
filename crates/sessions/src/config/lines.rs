//! Finds the line of a key in a TOML or YAML text, for errors about its value.

/// Returns the line (from 1) on which a key is set, such as `["dataset", "limit"]`. If the key
/// itself is not found, returns the line of the longest part of the path that is.
pub(super) fn line_of(text: &str, path: &[&str], is_toml: bool) -> Option<usize> {
    if is_toml { toml_line(text, path) } else { yaml_line(text, path) }
}

fn toml_line(text: &str, path: &[&str]) -> Option<usize> {
    let (mut table, mut found): (Vec<String>, Option<(usize, usize)>) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let key = if let Some(header) = line.strip_prefix('[') {
            table = split_key(header.trim_start_matches('[').split(']').next().unwrap_or_default());
            table.clone()
        } else {
            let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) else { continue };
            table.iter().cloned().chain(split_key(key)).collect()
        };
        let depth = key.iter().zip(path).take_while(|(own, wanted)| own == *wanted).count();
        if depth == key.len() && depth > found.map_or(0, |(depth, _)| depth) {
            found = Some((depth, index + 1));
        }
    }
    found.map(|(_, line)| line)
}

fn split_key(key: &str) -> Vec<String> {
    key.split('.').map(|part| part.trim().trim_matches(['"', '\'']).to_string()).collect()
}

fn yaml_line(text: &str, path: &[&str]) -> Option<usize> {
    let (mut found, mut depth, mut indent) = (None, 0, 0);
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let own_indent = line.len() - content.len();
        if depth > 0 && own_indent < indent && !content.is_empty() && !content.starts_with('#') {
            break;
        }
        let key = content.trim_start_matches("- ").split_once(':').map(|(key, _)| key.trim_matches(['"', '\'']));
        if depth < path.len() && key == Some(path[depth]) && (depth > 0 || own_indent == 0) {
            found = Some(index + 1);
            depth += 1;
            indent = own_indent + 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_toml_are_found_in_tables_and_dotted() {
        let text =
            "seed = 1\nmodel.path = \"x\"\n# limit = 2\n[dataset]\npath = \"d\"\nlimit = 3\n[[saes]]\npath = \"s\"\n";
        let line = |path: &[&str]| line_of(text, path, true);
        assert_eq!(line(&["seed"]), Some(1));
        assert_eq!(line(&["model", "path"]), Some(2));
        assert_eq!(line(&["dataset", "limit"]), Some(6));
        assert_eq!(line(&["saes", "path"]), Some(8));
        assert_eq!(line(&["dataset", "split"]), Some(4));
        assert_eq!(line(&["output", "path"]), None);
    }

    #[test]
    fn keys_of_yaml_are_found_by_indentation() {
        let text = "seed: 1\ndataset:\n  path: d\n  limit: 3\nsaes:\n  - path: s\noutput:\n  path: o\n";
        let line = |path: &[&str]| line_of(text, path, false);
        assert_eq!(line(&["dataset", "limit"]), Some(4));
        assert_eq!(line(&["output", "path"]), Some(8));
        assert_eq!(line(&["saes", "path"]), Some(6));
        assert_eq!(line(&["dataset", "split"]), Some(2));
        assert_eq!(line(&["model"]), None);
    }
}
