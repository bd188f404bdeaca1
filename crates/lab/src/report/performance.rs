//! The page about where the time goes, as Markdown.

use super::format::{bytes, seconds, share};
use crate::environment::Environment;
use crate::performance::{Captures, Limits, Measured, Performance, Phase};
use crate::roofline::OpRate;

/// Ops below this part of a pass are added up in one row.
const SMALL: f64 = 0.005;

/// The page, for a model under a name that says something elsewhere, too.
pub fn performance_page(found: &Performance, name: &str, environment: &Environment, command: &str) -> String {
    let limits = found.limits();
    let mut out = format!(
        "# Where the time goes\n\nMade by `{command}`; do not edit. The model is {name}, on {}.\n\n",
        machine(environment, found)
    );
    out += &machine_limits(found, &limits);
    out += &overview(found, &limits);
    for storage in &found.storages {
        out += &format!("## Weights as {}\n\n", kept(&storage.dtype));
        for phase in &storage.phases {
            out += &table(phase, &limits);
        }
    }
    if let Some(captures) = found.storages.iter().find_map(|storage| storage.captures.as_ref()) {
        out += &cost(captures);
    }
    out + METHOD
}

const METHOD: &str = "## How it is measured\n
Each storage has a process of its own. Passes are timed without a profile; their ops with one, which notes the time of each op. Everything is the fastest
of a few rounds, since what disturbs a machine only makes it slower. Limits are measured beside them: memory by all threads reading what no cache
holds, products on matrices of several sizes.

The bytes of an op are those of its weights, and its operations those of its products, attention's with the keys that are seen included; what an op reads besides comes from caches. The limit of an op is the
longer of two times: its bytes at the speed of memory, its operations at the speed of the fastest product. `of its limit` is that time as a part of the measured one; ops
without products have none. `of products` compares a prompt's operations a second with those of products that ran for 50 ms just before it, the median of all rounds: a
processor's speed changes from moment to moment, so the best product of a whole session may have had a faster one than any pass. Above 100 % the weights stay in a cache, or the machine was busier while its limits were measured. Ops bear the names of their
weights (`embed` is the head where both are one) or of what they do. The times of ops add up to more than their pass where profiling costs
something, and to less where their fastest rounds were different ones.\n";

fn machine(environment: &Environment, found: &Performance) -> String {
    let of = |key: &str| environment.hard.get(key).map_or("unknown", String::as_str);
    let threads = found.storages.first().map_or(0, |storage| storage.threads);
    format!(
        "{} ({} cores, {}), with {threads} threads, a {} build",
        of("cpu"),
        of("cores"),
        of("instructions"),
        of("build")
    )
}

fn kept(dtype: &str) -> &str {
    if dtype == "auto" { "stored in the file" } else { dtype }
}

fn pass(phase: &Phase) -> String {
    if phase.tokens == 1 { "a step of decoding".into() } else { format!("a prompt of {} tokens", phase.tokens) }
}

fn giga(value: f64) -> String {
    if value > 0.0 && value.is_finite() { format!("{:.1}", value / 1e9) } else { "—".into() }
}

fn machine_limits(found: &Performance, limits: &Limits) -> String {
    let ours = found.storages.iter().map(|storage| storage.flops_per_s).fold(0.0, f64::max);
    let mut out = String::from("| limit | measured |\n|---|---|\n");
    out += &format!("| reading memory | {} GB/s |\n", giga(limits.bytes_per_s));
    out += &format!("| our fastest product in f32 | {} GFLOP/s |\n", giga(ours));
    for (who, rate) in &found.peers {
        out += &format!("| the fastest product of {who} | {} GFLOP/s |\n", giga(*rate));
    }
    let ridge = limits.flops_per_s / limits.bytes_per_s;
    out + &format!(
        "\nAn op with fewer than {ridge:.1} operations for each byte of its weights waits for memory, one with more for the multipliers.\n\n"
    )
}

/// The seconds that a pass needs at least.
fn least(phase: &Phase, limits: &Limits) -> f64 {
    phase.ops.iter().map(|op| limits.least_seconds(op)).sum()
}

fn overview(found: &Performance, limits: &Limits) -> String {
    let mut out = String::from(
        "| weights | their bytes | pass | time | tokens/s | GB/s | GFLOP/s | limit | of its limit | of products |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let row = |storage: &Measured, phase: &Phase| {
        let sum = |of: fn(&OpRate) -> f64| phase.ops.iter().map(of).sum::<f64>() / phase.seconds;
        let least = least(phase, limits);
        format!(
            "| {} | {} | {} | {} | {:.0} | {} | {} | {} | {} | {} |\n",
            kept(&storage.dtype),
            bytes(storage.weight_bytes as f64),
            pass(phase),
            seconds(phase.seconds),
            phase.tokens as f64 / phase.seconds,
            giga(sum(|op| op.bytes)),
            giga(sum(|op| op.flops)),
            seconds(least),
            share(least / phase.seconds),
            phase.of_products.map_or("—".into(), share)
        )
    };
    for storage in &found.storages {
        storage.phases.iter().for_each(|phase| out += &row(storage, phase));
    }
    out + "\n"
}

fn table(phase: &Phase, limits: &Limits) -> String {
    let capital = pass(phase).replacen('a', "A", 1);
    let mut out = format!(
        "{capital}, {}:\n\n| op | of the time | time | GB/s | GFLOP/s | limited by | of its limit |\n|---|---|---|---|---|---|---|\n",
        seconds(phase.seconds)
    );
    let (large, small): (Vec<&OpRate>, Vec<&OpRate>) = phase.ops.iter().partition(|op| op.share >= SMALL);
    for op in large {
        let (by, part) = match op.flops > 0.0 {
            true => {
                (if limits.is_memory(op) { "memory" } else { "products" }, share(limits.least_seconds(op) / op.seconds))
            }
            false => ("—", "—".into()),
        };
        out += &format!(
            "| {} | {} | {} | {} | {} | {by} | {part} |\n",
            op.name.trim_matches(['(', ')']),
            share(op.share),
            seconds(op.seconds),
            giga(op.bytes_per_s()),
            giga(op.flops_per_s())
        );
    }
    if !small.is_empty() {
        let sum = |of: fn(&OpRate) -> f64| small.iter().map(|op| of(op)).sum::<f64>();
        let (part, time) = (share(sum(|op| op.share)), seconds(sum(|op| op.seconds)));
        out += &format!("| others ({}) | {part} | {time} | — | — | — | — |\n", small.len());
    }
    out + "\n"
}

fn cost(captures: &Captures) -> String {
    let mut layers: Vec<usize> = captures.cells.iter().map(|cell| cell.1).collect();
    let mut lengths: Vec<usize> = captures.cells.iter().map(|cell| cell.0).collect();
    for list in [&mut layers, &mut lengths] {
        list.sort_unstable();
        list.dedup();
    }
    let heading: String = layers.iter().map(|count| format!(" {count} layers |")).collect();
    let mut out = format!(
        "## What captures cost\n\nA prompt in f32 with `resid_post` of so many layers captured:\n\n| tokens |{heading}\n"
    );
    out += &format!("|---|{}\n", "---|".repeat(layers.len()));
    for length in lengths {
        let of_length = || captures.cells.iter().filter(move |cell| cell.0 == length);
        let plain = of_length().find(|cell| cell.1 == 0).map_or(f64::NAN, |cell| cell.2);
        let cell = |&(_, count, time): &(usize, usize, f64)| match count {
            0 => format!(" {} |", seconds(time)),
            _ => format!(" {} (×{:.3}) |", seconds(time), time / plain),
        };
        out += &format!("| {length} |{}\n", of_length().map(cell).collect::<String>());
    }
    out + &format!(
        "\nA captured layer adds {} a token (R² {:.3} of the extra time by layers times tokens); with every layer captured a token takes {} (R² {:.3} of the whole time by \
         length). Where captures cost less than this machine's noise, the first R² says how much of what is left is noise.\n\n",
        tiny(captures.per_layer_token),
        captures.extra_r2,
        seconds(captures.per_token),
        captures.length_r2
    )
}

fn tiny(value: f64) -> String {
    if value.abs() < 1e-6 { format!("{:.2} ns", value * 1e9) } else { seconds(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_holds_ops_against_the_limits() {
        let op = |name: &str, seconds: f64, flops: f64, bytes: f64| OpRate {
            name: name.into(),
            phase: "step".into(),
            seconds,
            share: seconds / 0.02,
            flops,
            bytes,
        };
        let ops =
            vec![op("mlp.up", 0.016, 2e8, 4e8), op("(attention)", 0.003_96, 0.0, 0.0), op("(norm)", 4e-5, 0.0, 0.0)];
        let captures = Captures {
            cells: vec![(64, 0, 0.01), (64, 30, 0.0101)],
            per_layer_token: 5e-8,
            extra_r2: 0.98,
            per_token: 1e-4,
            length_r2: 0.999,
        };
        let storage = Measured {
            dtype: "f32".into(),
            weight_bytes: 400_000_000,
            threads: 2,
            bytes_per_s: 32e9,
            flops_per_s: 1.6e11,
            phases: vec![Phase { tokens: 9, seconds: 0.02, ops, of_products: Some(0.5) }],
            captures: Some(captures),
        };
        let found = Performance { model: "m".into(), storages: vec![storage], peers: vec![("torch 2".into(), 1.8e11)] };
        let page = performance_page(&found, "m", &Environment::default(), "pellucid lab performance");
        for line in [
            "Made by `pellucid lab performance`; do not edit.",
            "| reading memory | 32.0 GB/s |",
            "| the fastest product of torch 2 | 180.0 GFLOP/s |",
            "fewer than 5.6 operations",
            "| f32 | 400 MB | a prompt of 9 tokens | 20.00 ms | 450 | 20.0 | 10.0 | 12.50 ms | 62.5 % | 50.0 % |",
            "| mlp.up | 80.0 % | 16.00 ms | 25.0 | 12.5 | memory | 78.1 % |",
            "| attention | 19.8 % | 3.96 ms | — | — | — | — |",
            "| others (1) | 0.2 % | 40.0 µs | — | — | — | — |",
            "| 64 | 10.00 ms | 10.10 ms (×1.010) |",
            "adds 50.00 ns a token (R² 0.980",
        ] {
            assert!(page.contains(line), "{line}\nis not in\n{page}");
        }
    }
}
