//! `pellucid sites`: lists every site of a model.

use super::{print, print_json};
use crate::args::SitesArgs;
use crate::failure::Failure;
use crate::models;
use pellucid_engine::program::Layout;
use pellucid_engine::{Program, Site, site};
use serde_json::json;

pub fn run(args: SitesArgs) -> Result<(), Failure> {
    // Sites follow from the configuration; no weights are loaded.
    let (name, program) = models::describe(&args.model)?;
    let program = &program;
    if args.json {
        let sites: Vec<_> = program
            .sites()
            .map(|site| json!({ "site": site.to_string(), "shape": shape(program, site), "meaning": site.meaning(), "aliases": site::aliases(program, site) }))
            .collect();
        return print_json(&json!({ "model": name, "sites": sites }));
    }
    print(&table(program))
}

/// Returns the shape of a site, with `tokens` for the sequence length.
fn shape(program: &Program, site: Site) -> Vec<serde_json::Value> {
    let Some(edge) = program.edge_of(site) else { return Vec::new() };
    let edge = program.edge(edge);
    match edge.layout {
        Layout::Flat => vec![json!("tokens"), json!(edge.width)],
        Layout::Heads(heads) => vec![json!("tokens"), json!(heads), json!(edge.width / heads)],
        Layout::QueryKey => vec![json!(edge.width), json!("tokens"), json!("tokens")],
    }
}

/// Formats one line per point and shape, with the layers that have it.
fn table(program: &Program) -> String {
    let mut lines: Vec<(String, String, String, Vec<usize>, Site)> = Vec::new();
    for site in program.sites() {
        let shape = shape(program, site)
            .iter()
            .map(|part| part.to_string().trim_matches('"').to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let meaning = site.meaning();
        match (site.layer, lines.iter_mut().find(|line| line.4.point == site.point && line.1 == shape)) {
            (Some(layer), Some(line)) => line.3.push(layer),
            _ => {
                lines.push((site.point.to_string(), shape, meaning.to_string(), site.layer.into_iter().collect(), site))
            }
        }
    }
    let address = |line: &(String, String, String, Vec<usize>, Site)| match line.3.as_slice() {
        [] => line.0.clone(),
        layers => format!("layers.{}.{}", selector(layers), line.0),
    };
    let width = lines.iter().map(|line| address(line).len()).max().unwrap_or(0);
    let shape_width = lines.iter().map(|line| line.1.len()).max().unwrap_or(0);
    lines
        .iter()
        .map(|line| {
            format!("{:width$}  [{}]{:pad$}  {}\n", address(line), line.1, "", line.2, pad = shape_width - line.1.len())
        })
        .collect()
}

/// Formats layers: `0-29` for a range, `{0,2}` for others.
fn selector(layers: &[usize]) -> String {
    match (layers, layers.windows(2).all(|pair| pair[1] == pair[0] + 1)) {
        ([one], _) => one.to_string(),
        ([first, .., last], true) => format!("{first}-{last}"),
        _ => format!("{{{}}}", layers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
    }
}
