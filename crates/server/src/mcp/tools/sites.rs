//! `sites`: the named activations of a model, filtered by a pattern.

use crate::api_error::{ApiError, ApiResult};
use crate::body::whole_body;
use crate::mcp::progress::Progress;
use crate::mcp::tool::Tool;
use crate::routes::blocking;
use crate::routes::sites::{Axis, shape};
use crate::state::AppState;
use pellucid_engine::{Program, Site, site};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most rows of the answer.
const MAX_SITES: usize = 200;

pub struct Sites;

/// The arguments of `sites`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct SitesInput {
    /// Name of the model; the default model if absent.
    model: Option<String>,
    /// Only sites that this names: an address (`layers.3.z`, `logits`), a pattern (`layers.*.z`,
    /// `layers.2-4.mlp_out`), an alias of TransformerLens or Hugging Face
    /// (`blocks.3.hook_resid_pre`), or a part of a name or of a meaning (`resid`, `attention`). All
    /// sites if absent.
    pattern: Option<String>,
}

whole_body!(SitesInput);

/// The sites of a model.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SiteTable {
    /// The model.
    model: String,
    /// The sites in the order of computation, one row for all layers that share point and shape.
    sites: Vec<SiteRow>,
    /// The parts left out of the answer.
    cut: Vec<String>,
}

/// A site, or the same point of several layers.
#[derive(Debug, Serialize, JsonSchema)]
struct SiteRow {
    /// The address or pattern, as plans and captures take it.
    site: String,
    /// The shape of one layer's activation of one row; `tokens` stands for the number of positions.
    shape: Vec<Axis>,
    /// What it is.
    meaning: String,
    /// Other names of the first of the sites, which plans also take.
    aliases: Vec<String>,
}

impl Tool for Sites {
    const NAME: &'static str = "sites";
    const TITLE: &'static str = "List sites";
    const DESCRIPTION: &'static str = "Lists the sites of the model, which are the activations that plans and captures \
        name, with shapes and meanings, optionally filtered. Runs nothing.";
    type Input = SitesInput;
    type Output = SiteTable;

    fn example() -> Value {
        json!({"pattern": "layers.*.resid_post"})
    }

    async fn call(state: AppState, input: SitesInput, _: Progress) -> ApiResult<SiteTable> {
        let model = state.models.acquire(input.model.as_deref(), None).await?;
        blocking(move || {
            let program = model.loaded.model.program();
            let sites = select(program, input.pattern.as_deref())?;
            let mut rows = table(program, &sites);
            let mut cut = Vec::new();
            if rows.len() > MAX_SITES {
                cut.push(format!("{MAX_SITES} of {} rows are shown; give a pattern", rows.len()));
                rows.truncate(MAX_SITES);
            }
            Ok(SiteTable { model: model.id.clone(), sites: rows, cut })
        })
        .await
    }

    fn text(output: &SiteTable) -> String {
        let row = |SiteRow { site, shape, meaning, .. }: &SiteRow| {
            format!("{site} [{}] {meaning}\n", shape.iter().map(Axis::to_string).collect::<Vec<_>>().join(", "))
        };
        output.sites.iter().map(row).collect::<String>() + &crate::mcp::summary::list_cuts(&output.cut)
    }
}

/// The sites that a pattern names, or whose name or meaning contains it.
fn select(program: &Program, pattern: Option<&str>) -> ApiResult<Vec<Site>> {
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else { return Ok(program.sites().collect()) };
    let named = site::find(program, pattern);
    if let Ok(matches) = named {
        return Ok(matches.sites);
    }
    let part = pattern.to_lowercase();
    let contains = |site: &Site| site.to_string().contains(&part) || site.meaning().to_lowercase().contains(&part);
    let sites: Vec<Site> = program.sites().filter(contains).collect();
    match sites.is_empty() {
        true => Err(named.err().map_or_else(|| ApiError::field("pattern", "no site"), ApiError::from).about("pattern")),
        false => Ok(sites),
    }
}

/// One row for all layers that share point and shape.
fn table(program: &Program, sites: &[Site]) -> Vec<SiteRow> {
    let mut rows: Vec<(Vec<usize>, Site, Vec<Axis>)> = Vec::new();
    for &site in sites {
        let shape = shape(program, site);
        let is_same = |(_, other, of): &(Vec<usize>, Site, Vec<Axis>)| {
            other.point == site.point && other.sae == site.sae && other.layer.is_some() && *of == shape
        };
        match (site.layer, rows.iter_mut().find(|row| is_same(row))) {
            (Some(layer), Some(row)) => row.0.push(layer),
            _ => rows.push((site.layer.into_iter().collect(), site, shape)),
        }
    }
    let row = |(layers, site, shape): (Vec<usize>, Site, Vec<Axis>)| SiteRow {
        site: pattern(&layers, site),
        shape,
        meaning: site.meaning().to_owned(),
        aliases: site::aliases(program, site),
    };
    rows.into_iter().map(row).collect()
}

/// The pattern of a point at layers: `layers.0-5.z` for a range, `layers.{0,2}.z` for others.
fn pattern(layers: &[usize], site: Site) -> String {
    let address = site.to_string();
    let (Some(first), Some(last)) = (layers.first(), layers.last()) else { return address };
    let selector = match (layers.len(), layers.windows(2).all(|pair| pair[1] == pair[0] + 1)) {
        (1, _) => return address,
        (_, true) => format!("{first}-{last}"),
        _ => format!("{{{}}}", layers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
    };
    address.replacen(&format!("layers.{first}"), &format!("layers.{selector}"), 1)
}
