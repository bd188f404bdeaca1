use super::*;
use crate::gguf::Writer;
use crate::{Error, LoadOptions, LoadedModel};
use pellucid_engine::{Action, Operand, Point};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn vectors(layers: &[usize], width: usize) -> SteeringVectors {
    let direction = |layer: usize| (0..width).map(|i| (layer * 7 + i) as f32 - 2.5).collect();
    let info = SteeringInfo {
        model_type: Some("llama".into()),
        fingerprint: Some("0123456789abcdef".into()),
        method: Some("pca_diff".into()),
        positions: Some("last".into()),
        pairs: Some(12),
        scale: Some(ScaleConvention::Unit),
    };
    let directions: BTreeMap<_, _> = layers.iter().map(|&layer| (layer, direction(layer))).collect();
    SteeringVectors::new(Point::ResidPost, directions, info).unwrap()
}

/// Writes a file into a directory that lives as long as the first element.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

/// The problem of a file that must be rejected; the error names the file and has a remedy.
fn problem(name: &str, bytes: &[u8]) -> String {
    let (_directory, path) = file(name, bytes);
    match SteeringVectors::open(&path) {
        Err(Error::Invalid { path: named, problem, remedy }) if named == path && !remedy.to_string().is_empty() => {
            problem
        }
        other => panic!("not rejected as invalid: {other:?}"),
    }
}

fn control_vector() -> Writer {
    let mut file = Writer::default();
    file.text("general.architecture", "controlvector").text("controlvector.model_hint", "llama");
    file
}

fn gguf_problem(change: impl Fn(&mut Writer) -> &mut Writer) -> String {
    let mut file = control_vector();
    change(&mut file);
    problem("a.gguf", &file.bytes())
}

#[test]
fn both_formats_return_the_same_bits_and_the_metadata() {
    let vectors = vectors(&[1, 3, 11], 5);
    for name in ["a.safetensors", "a.gguf"] {
        let bytes = vectors.to_file(Path::new(name)).unwrap();
        assert_eq!(bytes, vectors.to_file(Path::new(name)).unwrap(), "the bytes of a file are reproducible");
        let (_directory, path) = file("renamed.bin", &bytes);
        assert_eq!(SteeringVectors::open(&path).unwrap(), vectors, "{name}");
    }
}

#[test]
fn a_safetensors_file_may_hold_another_point_and_layer_0() {
    let directions = BTreeMap::from([(0, vec![1.0, 2.0])]);
    let vectors = SteeringVectors::new(Point::MlpOut, directions, SteeringInfo::default()).unwrap();
    let (_directory, path) = file("a.safetensors", &vectors.to_file(Path::new("a.safetensors")).unwrap());
    assert_eq!(SteeringVectors::open(&path).unwrap(), vectors);
    let error = vectors.to_file(Path::new("a.gguf")).unwrap_err().to_string();
    assert!(error.contains("these vectors are for `mlp_out`"), "{error}");
    let first = super::tests::vectors(&[0], 2).to_file(Path::new("a.gguf")).unwrap_err().to_string();
    assert!(first.contains("no direction for layer 0"), "{first}");
    let neither = vectors.to_file(Path::new("a.pt")).unwrap_err().to_string();
    assert!(neither.contains(".safetensors or .gguf"), "{neither}");
}

#[test]
fn names_of_other_programs_are_understood() {
    use super::vectors::parse_name;
    assert_eq!(parse_name("direction.12"), Some((12, None)));
    assert_eq!(parse_name("layers.12.resid_post"), Some((12, Some(Point::ResidPost))));
    for name in ["layers.12", "layer.12", "12"] {
        assert_eq!(parse_name(name), Some((12, None)));
    }
    for name in ["direction", "direction.-1", "direction.1.2", "layers.1.logits", "layers.x.z", "model.norm.weight", ""]
    {
        assert_eq!(parse_name(name), None, "{name}");
    }
}

#[test]
fn files_with_anything_but_directions_are_rejected() {
    assert!(
        gguf_problem(|f| f.tensor("output_norm.weight", &[2], &[1.0; 2])).contains("is not the direction of a layer")
    );
    assert!(gguf_problem(|f| f.tensor("direction.1", &[2, 2], &[1.0; 4])).contains("has shape [2, 2]"));
    assert_eq!(gguf_problem(|f| f), "there are no directions");
    let twice = gguf_problem(|f| f.tensor("direction.1", &[1], &[1.0]).tensor("direction.01", &[1], &[1.0]));
    assert_eq!(twice, "layer 1 has two directions");
    let widths = gguf_problem(|f| f.tensor("direction.1", &[1], &[1.0]).tensor("direction.2", &[2], &[1.0; 2]));
    assert_eq!(widths, "the direction of layer 2 has 2 elements, that of layer 1 has 1");
    let nan = gguf_problem(|f| f.tensor("direction.1", &[2], &[1.0, f32::NAN]));
    assert_eq!(nan, "the direction of layer 1 has NaN at index 1");
    assert_eq!(gguf_problem(|f| f.tensor("direction.3", &[2], &[0.0; 2])), "the direction of layer 3 is zero");

    let mut model = Writer::default();
    model.text("general.architecture", "llama");
    assert!(problem("a.gguf", &model.bytes()).contains("architecture `llama`, not `controlvector`"));
    let mut broken = control_vector();
    broken.text("pellucid.steering", "{").tensor("direction.1", &[1], &[1.0]);
    assert!(problem("a.gguf", &broken.bytes()).contains("the metadata \"pellucid.steering\" is not valid"));
}

#[test]
fn damaged_and_hostile_files_are_rejected_before_memory_is_allocated() {
    let vectors = vectors(&[1, 2], 64);
    for name in ["a.safetensors", "a.gguf"] {
        let bytes = vectors.to_file(Path::new(name)).unwrap();
        for length in (0..bytes.len()).step_by(7) {
            let (_directory, path) = file(name, &bytes[..length]);
            assert!(SteeringVectors::open(&path).is_err(), "{name} of {length} bytes");
        }
    }
    // A tensor that claims 4 TB.
    let header = r#"{"direction.1":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 64]].concat();
    assert!(problem("a.safetensors", &bytes).contains("direction.1"));
    assert!(matches!(SteeringVectors::open(Path::new("absent.gguf")), Err(Error::Io { .. })));
}

#[test]
fn a_spec_has_a_file_a_scale_and_layers() {
    let parse =
        |text: &str| SteerSpec::parse(text).map(|spec| (spec.path, spec.scale, spec.layers.map(|l| l.to_string())));
    let of = |path: &str, scale: f32, layers: Option<&str>| Ok((PathBuf::from(path), scale, layers.map(String::from)));
    let same = |text: &str, expected: crate::Result<_>| assert_eq!(parse(text).unwrap(), expected.unwrap(), "{text}");
    same("a.gguf", of("a.gguf", 1.0, None));
    same("a.gguf@-2", of("a.gguf", -2.0, None));
    same("a.gguf:5", of("a.gguf", 1.0, Some("5")));
    same("a@b/c.gguf@0.5:3,7,5", of("a@b/c.gguf", 0.5, Some("3,5,7")));
    same("C:\\a.gguf", of("C:\\a.gguf", 1.0, None));
    for text in ["a.gguf@", "a.gguf@x", "a.gguf@nan", "a.gguf:", "a.gguf:9-5", "a.gguf:1-99999999999", "@2", ":5"] {
        let error = SteerSpec::parse(text).expect_err(text);
        assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("FILE[@SCALE][:LAYERS]")), "{text}");
    }
}

#[test]
fn taps_add_the_scaled_directions_of_the_selected_layers() {
    let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
    let width = loaded.model.program().architecture().width;
    let vectors = vectors(&[1, 2, 3], width);
    let (_directory, path) = file("a.safetensors", &vectors.to_file(Path::new("a.safetensors")).unwrap());
    let spec = |layers: Option<&str>| SteerSpec {
        path: path.clone(),
        scale: -2.0,
        layers: layers.map(|text| text.parse().unwrap()),
    };
    let (taps, warning) = spec(Some("2-3")).taps(&loaded).unwrap();
    assert_eq!(
        taps.iter().map(|tap| tap.site.as_str()).collect::<Vec<_>>(),
        ["layers.2.resid_post", "layers.3.resid_post"]
    );
    let operand = Operand::Vector(vectors.directions()[&2].clone());
    assert_eq!(taps[0].action, Action::Add { operand, scale: -2.0 });
    assert!(warning.unwrap().contains("another model (fingerprint 0123456789abcdef; this one has"));
    assert_eq!(spec(None).taps(&loaded).unwrap().0.len(), 3);
    let absent = spec(Some("7")).taps(&loaded).unwrap_err();
    assert!(absent.to_string().ends_with("a.safetensors: there is no direction for layer 7"), "{absent}");
    assert_eq!(absent.remedy().unwrap().to_string(), "it has directions for layers 1-3");
}

#[test]
fn vectors_that_do_not_fit_a_model_are_rejected_and_others_are_reported() {
    let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
    let architecture = loaded.model.program().architecture();
    let (width, depth) = (architecture.width, architecture.layers.len());
    let deep = vectors(&[depth], width).check(loaded.model.program()).unwrap_err().to_string();
    assert!(deep.contains(&format!("a direction for layer {depth}, and the model has layers 0 to")), "{deep}");
    let wide = vectors(&[1], width + 1).check(loaded.model.program()).unwrap_err().to_string();
    assert!(wide.contains(&format!("the directions have {} elements", width + 1)), "{wide}");

    let mut vectors = vectors(&[1], width);
    vectors.info.fingerprint = Some(fingerprint(&loaded.model));
    vectors.info.model_type = Some(architecture.family.to_uppercase());
    assert_eq!(vectors.warning(&loaded), None);
    vectors.info.model_type = Some("gpt_neox".into());
    assert!(vectors.warning(&loaded).unwrap().contains("a model of type `gpt_neox`"));
}
