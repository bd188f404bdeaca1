//! `pellucid steer`: extracts steering vectors and shows files of them.

use super::{print, print_json, say};
use crate::args::{ExtractArgs, ShowArgs, SteerCommand};
use crate::failure::Failure;
use crate::{files, models, progress};
use pellucid_analysis::steer::{ExtractOptions, Extraction, LayerQuality, extract, parse_pairs};
use pellucid_models::steer::{SteeringVectors, check_format, layer_point};
use serde_json::{Value, json};

pub fn run(command: SteerCommand) -> Result<(), Failure> {
    match command {
        SteerCommand::Extract(args) => run_extract(args),
        SteerCommand::Show(args) => show(args),
    }
}

fn run_extract(args: ExtractArgs) -> Result<(), Failure> {
    files::check(Some(&args.output))?;
    let text = std::fs::read_to_string(&args.pairs)
        .map_err(|error| Failure::usage(format!("{}: {error}", args.pairs.display()), "check the path"))?;
    let pairs = parse_pairs(&text, &args.pairs)?;
    let point = layer_point(&args.point)?;
    check_format(&args.output, point, args.layers.iter().flat_map(|layers| layers.as_slice()))?;
    let loaded = models::load(&args.model)?;
    let mut rows = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        let encoded = pair.encode(loaded);
        rows.push(encoded.map_err(|error| Failure::from(error).in_context(&format!("pair {}", index + 1)))?);
    }
    let options = ExtractOptions {
        method: args.method.into(),
        layers: args.layers,
        positions: args.positions,
        point,
        ..ExtractOptions::default()
    };
    let bar = progress::DelayedProgressBar::new("running prompts");
    let found = extract(loaded, &rows, &options, &mut |fraction| bar.set(fraction))?;
    bar.finish();
    files::write(&args.output, &found.vectors.to_file(&args.output)?)?;
    if args.json {
        let info = &found.vectors.info;
        return print_json(&json!({ "model": loaded.name, "point": args.point, "info": info, "layers": found.layers }));
    }
    print(&quality_table(&found))?;
    let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    let (directions, pairs) = (count(found.layers.len(), "direction"), count(pairs.len(), "pair"));
    say(&format!("wrote {directions} from {pairs} to {}", args.output.display()));
    Ok(())
}

fn quality_table(found: &Extraction) -> String {
    let mut text = format!(
        "{:>5} {:>9} {:>11} {:>9} {:>10} {:>7} {:>8}\n",
        "layer", "norm", "activation", "explained", "separation", "ordered", "held out"
    );
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    for LayerQuality { layer, norm, activation_norm, explained, separation, accuracy, held_out_accuracy } in
        &found.layers
    {
        text += &format!(
            "{layer:>5} {norm:>9.3} {activation_norm:>11.2} {:>9} {separation:>10.2} {:>7} {:>8}\n",
            percent(*explained),
            percent(*accuracy),
            held_out_accuracy.map_or_else(|| "-".into(), percent)
        );
    }
    text
}

fn show(args: ShowArgs) -> Result<(), Failure> {
    let vectors = SteeringVectors::open(&args.file)?;
    let other = args.other.as_deref().map(SteeringVectors::open).transpose()?;
    if let Some(other) = &other
        && other.width() != vectors.width()
    {
        return Err(Failure::usage(
            format!("the directions have {} and {} elements", vectors.width(), other.width()),
            "compare vectors of the same model",
        ));
    }
    let lengths = vectors.directions().iter().map(|(&layer, direction)| {
        let with = other.as_ref().and_then(|other| other.directions().get(&layer));
        (layer, norm(direction), with.map(|with| dot(direction, with) / (norm(direction) * norm(with))))
    });
    let rows: Vec<(usize, f64, Option<f64>)> = lengths.collect();
    let point = vectors.point().info().name;
    if args.json {
        let layers: Vec<Value> = rows
            .iter()
            .map(|(layer, norm, cosine)| json!({ "layer": layer, "norm": norm, "cosine": cosine }))
            .collect();
        return print_json(
            &json!({ "point": point, "width": vectors.width(), "info": vectors.info, "layers": layers }),
        );
    }
    let mut text = format!("layers {} at {point}, width {}\n", vectors.layers(), vectors.width());
    text += &info_lines(&vectors);
    text += if other.is_some() { "layer      norm   cosine\n" } else { "layer      norm\n" };
    for (layer, norm, cosine) in rows {
        text += &format!("{layer:>5} {norm:>9.3}");
        match (cosine, &other) {
            (Some(cosine), _) => text += &format!(" {cosine:>8.4}"),
            (None, Some(_)) => text += "        -",
            (None, None) => {}
        }
        text += "\n";
    }
    print(&text)
}

/// The metadata that the file has, one line each.
fn info_lines(vectors: &SteeringVectors) -> String {
    let info = &vectors.info;
    let lines = [
        ("model type", info.model_type.clone()),
        ("fingerprint", info.fingerprint.clone()),
        ("method", info.method.clone()),
        ("positions", info.positions.clone()),
        ("pairs", info.pairs.map(|pairs| pairs.to_string())),
        ("scale", info.scale.map(|scale| scale.name().to_owned())),
    ];
    lines.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}\n", value?))).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| a as f64 * b as f64).sum()
}

fn norm(a: &[f32]) -> f64 {
    dot(a, a).sqrt()
}
