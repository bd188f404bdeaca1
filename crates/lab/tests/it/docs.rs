//! The suites in the documentation and the workflows are valid.

use pellucid_lab::suite::{Suite, WorkerKind};
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text blocks between two marker lines, without indentation.
fn between(text: &str, open: &str, close: &str) -> Vec<String> {
    let (mut found, mut inside): (Vec<String>, bool) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if !inside && line == open {
            inside = true;
            found.push(String::new());
        } else if line == close {
            inside = false;
        } else if let (true, Some(block)) = (inside, found.last_mut()) {
            block.push_str(line);
            block.push('\n');
        }
    }
    found
}

#[test]
fn every_suite_in_lab_md_is_valid() {
    let page = read("docs/lab.md");
    let blocks = between(&page, "```toml", "```");
    assert_eq!(blocks.len(), 2);
    let suites: Vec<Suite> =
        blocks.iter().map(|text| Suite::parse(text, "docs/lab.md").unwrap_or_else(|error| panic!("{error}"))).collect();
    assert!(suites[0].variants.iter().all(|variant| variant.binary.is_some()) && suites[0].limits.len() == 1);
    // The models of the second suite are in this repository.
    let own = suites[1].workloads.iter().filter_map(|workload| workload.model.as_ref());
    for model in own.chain(&suites[1].model) {
        assert!(!read(&format!("{model}/config.json")).is_empty());
    }
}

#[test]
fn lab_md_lists_every_suite_job_and_peer() {
    let page = read("docs/lab.md");
    for name in pellucid_lab::builtin_suites::names() {
        assert!(page.lines().any(|line| line.starts_with(&format!("{name} "))), "`lab list` of the page has no {name}");
        let suite = pellucid_lab::builtin_suites::named(name).expect("it is there").expect("a suite");
        for workload in &suite.workloads {
            let job = serde_json::to_value(workload.job).expect("JSON");
            let job =
                job.as_str().map_or_else(|| job.as_object().and_then(|o| o.keys().next()).cloned(), |n| Some(n.into()));
            let job = job.expect("a name");
            assert!(page.contains(&format!("`\"{job}\"`")) || page.contains(&format!("`{{ {job} = ")), "{job}");
        }
    }
    for worker in [
        WorkerKind::Transformers,
        WorkerKind::Nnsight,
        WorkerKind::TransformerLens,
        WorkerKind::SaeLens,
        WorkerKind::LlamaCpp,
    ] {
        let module = worker.module().expect("a peer");
        assert!(page.contains(&format!("| `{module}` |")), "{module}");
        // The prelude reads one request; the last line of the program replies.
        let script = worker.script().expect("a program");
        assert!(script.matches("json.load(sys.stdin)").count() == 1 && script.ends_with("\nreply(main)\n"), "{module}");
    }
    assert!(page.contains("| `candle` |") && WorkerKind::Candle.script().is_none());
}

#[test]
fn the_suite_of_the_benchmark_workflow_is_valid() {
    let blocks = between(&read(".github/workflows/benchmark-gate.yml"), "cat > gate.toml <<'SUITE'", "SUITE");
    assert_eq!(blocks.len(), 1);
    let suite = Suite::parse(&blocks[0], "benchmark-gate.yml").unwrap_or_else(|error| panic!("{error}"));
    let ids: Vec<&str> = suite.variants.iter().map(|variant| variant.id.as_str()).collect();
    assert_eq!((suite.reference.as_str(), ids), ("base", vec!["base", "head"]));
}
