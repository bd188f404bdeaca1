//! Autoencoders that a session names and no op reads.

use crate::helpers::{error_of, example, open, run, run_sources, write_sae};
use pellucid_sessions::Session;
use pellucid_sessions::ops::Registry;
use pellucid_sessions::session::Event;
use serde_json::json;

#[test]
fn they_are_not_loaded_and_change_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let plain = run("base.toml", &directory.path().join("plain"), json!({}));
    let own = write_sae(directory.path(), "blocks.2.hook_resid_post", 64);
    let saes = json!([{"path": "builtin"}, {"path": own, "unchecked": true}]);
    let settings = json!({"saes": saes, "output": {"path": directory.path().join("with")}});
    let mut notes = Vec::new();
    let sources = example("base.toml", settings.clone());
    let session = Session::open(&sources, &Registry::default(), None, &mut |event| {
        if let Event::Note(note) = event {
            notes.push(note);
        }
    });
    let session = session.expect("a session");
    assert!(session.hooks().is_empty());
    assert!(notes[0].contains("builtin: not loaded, because no op"), "{notes:?}");
    // A check loads them anyway.
    let sites: Vec<String> = session.check().expect("valid").saes.into_iter().map(|(site, _)| site).collect();
    assert_eq!(sites, ["layers.3.resid_post", "layers.2.resid_post"]);
    let store = run_sources(&sources).expect("a run").store;
    assert_eq!(store.manifest().content_hash, plain.manifest().content_hash);
    assert!(store.manifest().saes.is_empty() && store.manifest().config.saes.len() == 2);
    // An op that caches latents reads them, and so does an option that names a site of theirs.
    for more in [
        json!({"ops": "labels_to_ids.model_fwd_w_cache.logit_diffs_cache.get_alive_latents"}),
        json!({"concept": {"site": "layers.3.resid_post/sae.acts"}}),
    ] {
        let session = open(&[&sources[..], &example("base.toml", more)[1..]].concat()).expect("a session");
        assert_eq!(session.hooks().len(), 2);
    }
}

#[test]
fn a_check_finds_their_mistakes_and_a_run_misses_only_their_paths() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = |path: &str| json!({"saes": [{"path": path}], "output": {"path": directory.path().join("s")}});
    let (problem, _) = error_of(open(&example("base.toml", settings("nosuch"))));
    assert!(problem.contains("nosuch: no such file"), "{problem}");
    let (problem, _) = error_of(open(&example("base.toml", settings(""))));
    assert!(problem.contains("an SAE has no `path`"), "{problem}");
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let session = open(&example("base.toml", settings(&empty.to_string_lossy()))).expect("a session");
    let (problem, _) = error_of(session.check());
    assert!(problem.contains("not an autoencoder in a known format"), "{problem}");
}
