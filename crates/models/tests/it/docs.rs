//! Tests of the documentation: its plans run on the built-in model, and its tables agree with the
//! code.

use crate::gguf_files;
use golden::models_page;
use pellucid_engine::point::Scope;
use pellucid_engine::{Action, Control, GenerateOptions, Phase, Plan, Point, Positions, RunOptions};
use pellucid_kernels::Matrix;
use pellucid_kernels::encoding::Encoding;
use pellucid_models::gguf::{GgufFile, hf_config};
use pellucid_models::tokenizer::TOKENIZER_FILES;
use pellucid_models::{LoadOptions, LoadedModel, StopStrings, Strategy, families, prepare, strategies};
use std::path::{Path, PathBuf};

/// The prompts of the guide. They have equal lengths, so that each can be patched from the other.
const PROMPTS: [&str; 2] = ["Tom saw a dog. The", "Lily saw a bird. The"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every plan of `examples/plans`, by file name.
fn examples() -> Vec<(String, Plan)> {
    let entries = std::fs::read_dir(root().join("examples/plans")).expect("the examples");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".json"));
    names.sort();
    assert!(names.len() >= 20, "the examples are missing: {names:?}");
    let plan = |name: &String| {
        Plan::from_json(&read(format!("examples/plans/{name}"))).unwrap_or_else(|problem| panic!("{name}: {problem}"))
    };
    names.iter().map(|name| (name.clone(), plan(name))).collect()
}

/// The fenced blocks of a language, each with the number of its first line.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let fence = format!("```{language}");
    let (mut found, mut open): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        match line {
            line if !open && line == fence => {
                open = true;
                found.push((number + 2, String::new()));
            }
            "```" => open = false,
            line if open => found.last_mut().expect("a block").1.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    found
}

#[test]
fn every_example_plan_runs_and_generates() {
    let loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
    let rows: Vec<Vec<u32>> = PROMPTS.iter().map(|prompt| loaded.encode(prompt).expect("tokens")).collect();
    assert_eq!(rows[0].len(), rows[1].len(), "the guide says that both have the same length");
    // The built-in model has no experts.
    let sparse = golden::case("mixtral");
    let sparse_rows = vec![sparse.ids.clone(); 2];
    for (name, plan) in examples() {
        let has_experts = plan.taps.iter().any(|tap| tap.site.contains("expert"));
        let (loaded, rows) = if has_experts { (&sparse.loaded, &sparse_rows) } else { (&loaded, &rows) };
        let fail = |problem: &dyn std::fmt::Display| -> ! { panic!("{name}: {problem}") };
        let base = root().join("examples/plans");
        let plan = prepare(plan, &base, rows, loaded.tokenizer.as_deref()).unwrap_or_else(|error| fail(&error));
        let captures = plan.taps.iter().filter(|tap| matches!(tap.action, Action::Capture(_))).count();
        let of_prompt =
            plan.taps.iter().filter(|tap| tap.phase != Phase::Decode && tap.positions != Positions::Generated);
        let of_prompt = of_prompt.filter(|tap| matches!(tap.action, Action::Capture(_))).count();

        let run = loaded.model.run(rows, &plan, &RunOptions::default());
        if plan.taps.iter().any(|tap| tap.action == Action::Stop) {
            assert!(run.is_err_and(|error| error.to_string().contains("`stop` ends a generation")), "{name}");
        } else {
            let found = run.unwrap_or_else(|error| fail(&error)).captures.len();
            assert!(found >= of_prompt, "{name}: {found} captures of a run");
        }
        let options = GenerateOptions { max_new: 6, ..GenerateOptions::default() };
        let generation = loaded.model.generate(rows, &plan, &options, &mut |_, _| Control::Go);
        if !plan.metrics.is_empty() {
            assert!(
                generation
                    .is_err_and(|error| error.to_string().contains("gradients are not available during generation")),
                "{name}"
            );
            continue;
        }
        let generation = generation.unwrap_or_else(|error| fail(&error));
        assert!(
            generation.captures.len() >= captures,
            "{name}: {} captures of a generation",
            generation.captures.len()
        );
    }
}

#[test]
fn every_plan_of_the_guide_is_an_example_and_every_example_is_in_the_guide() {
    let (guide, examples) = (read("docs/plans.md"), examples());
    let shown: Vec<Plan> = blocks(&guide, "json")
        .iter()
        .map(|(line, text)| {
            let plan = Plan::from_json(text).unwrap_or_else(|problem| panic!("docs/plans.md, line {line}: {problem}"));
            assert!(
                examples.iter().any(|(_, example)| *example == plan),
                "docs/plans.md, line {line}: no such example"
            );
            plan
        })
        .collect();
    for (name, example) in &examples {
        assert!(shown.contains(example), "examples/plans/{name} is not in docs/plans.md");
    }
}

#[test]
fn the_patch_example_moves_the_noun() {
    // Control of this file: an example plan has the effect that the guide describes.
    let loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
    let rows: Vec<Vec<u32>> = PROMPTS.iter().map(|prompt| loaded.encode(prompt).expect("tokens")).collect();
    let next = |plan: &Plan| -> Vec<String> {
        let options = GenerateOptions { max_new: 1, ..GenerateOptions::default() };
        let generation =
            loaded.generate(&rows, plan, &options, &StopStrings::default(), &mut |_| {}).expect("a generation");
        generation.rows.iter().map(|row| loaded.text(&row.tokens, &StopStrings::default()).expect("a text")).collect()
    };
    let patch = examples().into_iter().find(|(name, _)| name == "patch.json").expect("the example").1;
    assert_eq!(next(&Plan::default()), [" dog", " bird"]);
    assert_eq!(next(&patch), [" dog", " dog"]);
}

#[test]
fn the_guide_to_sites_has_every_point_as_the_table_declares_it() {
    let guide = read("docs/sites.md");
    for point in Point::ALL {
        let info = point.info();
        let start = format!("| `{}` |", info.name);
        let row = guide
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("docs/sites.md lacks {point}"));
        let alias = info.transformer_lens.map(|alias| format!("`{}`", alias.replace("{}", "L")));
        for part in [Some(info.meaning.to_string()), alias].into_iter().flatten() {
            assert!(row.contains(&part), "docs/sites.md, {point}: {part:?} is not in {row:?}");
        }
        let absent = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        let always = info.absent_because == "every model has it";
        assert_eq!(absent, if always { "never" } else { info.absent_because }, "docs/sites.md, {point}");
        let in_layers = guide.lines().position(|line| line == "## In every layer").expect("the section");
        let line = guide.lines().position(|line| line.starts_with(&start)).expect("the row");
        assert_eq!(line > in_layers, info.scope == Scope::Layer, "docs/sites.md, {point} is in the wrong table");
    }
}

#[test]
fn the_guide_to_models_names_every_family_and_every_encoding() {
    let guide = read("docs/models.md");
    for family in families::native() {
        assert!(guide.contains(&format!("| `{family}` |")), "docs/models.md lacks {family}");
    }
    for encoding in Encoding::ALL {
        assert!(guide.contains(&format!("`{encoding}`")), "docs/models.md lacks {encoding}");
    }
}

#[test]
fn the_table_of_model_types_is_what_the_golden_cases_give() {
    let (page, rows) = (read("docs/model-types.md"), models_page::measure());
    let problems = models_page::problems(&page, &rows);
    assert!(problems.is_empty(), "docs/model-types.md: run `cargo xtask check --fix`\n{}", problems.join("\n"));
    // Control: a wrong class name is found.
    let other = page.replacen("`LlamaForCausalLM`", "`LamaForCausalLM`", 1);
    assert!(!models_page::problems(&other, &rows).is_empty());
    assert_eq!(models_page::renewed(&other, &rows), page);
}

#[test]
fn the_guide_to_loading_names_every_strategy_and_form_and_shows_the_example() {
    let guide = read("docs/loading.md");
    for strategy in Strategy::ALL {
        assert!(guide.contains(&format!("| {strategy} |")), "docs/loading.md lacks {strategy}");
    }
    for form in TOKENIZER_FILES {
        assert!(guide.contains(&format!("`{form}`")), "docs/loading.md lacks {form}");
    }
    let program = read("crates/models/examples/load_explained.rs");
    let shown = &program[program.find("use pellucid_models").expect("the first line")..];
    assert!(guide.contains(shown), "the program in docs/loading.md differs from examples/load_explained.rs");
    let explained = strategies(&root().join("crates/models/builtin"), &LoadOptions::default());
    for attempt in explained {
        assert!(guide.contains(&format!("\n  {attempt}\n")), "docs/loading.md does not show this attempt: {attempt}");
    }
}

/// The table of GGUF architectures and the list of fast formats were once behind the code.
#[test]
fn r11_the_page_of_models_lists_gguf_architectures_and_fast_formats_as_they_are() {
    let page = read("docs/models.md");
    let section =
        page.split("\n## GGUF files\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a section");
    let ticked = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = section.lines().skip_while(|line| !line.starts_with("| GGUF architecture")).skip(2);
    let listed: Vec<String> = rows
        .take_while(|line| line.starts_with('|'))
        .flat_map(|line| ticked(line.split('|').nth(1).unwrap_or("")))
        .collect();
    assert!(listed.len() >= 13, "{listed:?}");
    let is_known = |architecture: &str| {
        let file = gguf_files::with_architecture(architecture, 1, 0);
        let file = GgufFile::parse(file, "m.gguf").expect("a GGUF file");
        let problem = hf_config(&file).err().map(|error| error.to_string()).unwrap_or_default();
        !problem.contains("is not known to this build")
    };
    for architecture in &listed {
        assert!(is_known(architecture), "{architecture} does not run");
    }
    // Those of llama.cpp that are most likely to be next.
    for architecture in ["mamba", "falcon", "bert", "stablelm", "command-r", "deepseek2", "glm4", "olmo2", "starcoder2"]
    {
        assert_eq!(is_known(architecture), listed.iter().any(|known| known == architecture), "{architecture}");
    }
    let fast = section.split("\nQuantized matrices stay quantized. ").nth(1).expect("a paragraph");
    let mut fast = ticked(fast.split("\nare repacked").next().expect("a sentence"));
    fast.sort();
    let packed = |encoding: &&Encoding| encoding.is_quantized() && Matrix::encoded_bytes(256, 256, **encoding) > 0;
    let mut formats: Vec<String> = Encoding::ALL.iter().filter(packed).map(Encoding::to_string).collect();
    formats.sort();
    assert_eq!(fast, formats);
}

#[test]
fn the_guide_to_contributing_quotes_the_code() {
    let sources = ["crates/models/src/families/llama.rs", "crates/models/src/families/mod.rs"].map(read).concat();
    let quoted = blocks(&read("CONTRIBUTING.md"), "rust");
    assert!(quoted.len() >= 3, "the guide shows a family");
    for (line, text) in quoted {
        assert!(quotes(&sources, &text), "CONTRIBUTING.md, line {line}: not in the code as a block");
    }
    // Control: lines that occur but are not adjacent are not a quotation.
    assert!(quotes("    a();\n    b();\n", "a();\nb();\n"));
    assert!(!quotes("    a();\n    c();\n    b();\n", "a();\nb();\n"));
}

/// Whether `source` contains `block` as adjacent lines, indented by any number of spaces.
fn quotes(source: &str, block: &str) -> bool {
    let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    let (source, block) = (trimmed(source), trimmed(block));
    source.windows(block.len()).any(|lines| {
        let indent = lines[0].len() - lines[0].trim_start().len();
        let unindented = lines.iter().map(|line| line.get(indent..).unwrap_or(""));
        unindented.eq(block.iter().map(String::as_str))
    })
}
