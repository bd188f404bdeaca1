//! Outlines: a model without its weights is the same model.

use golden::{Case, one_per_type};
use pellucid_models::LoadedModel;
use pellucid_models::outline::ModelOutline;

#[test]
fn an_outline_has_the_sites_and_weights_of_its_model() {
    for name in one_per_type() {
        let Case { loaded, .. } = golden::case(&name);
        let json = serde_json::to_string(&loaded.outline().expect("an outline")).expect("JSON");
        let outline: ModelOutline = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&outline.architecture, loaded.model.program().architecture(), "{name}");
        let copy = LoadedModel::without_weights(&outline).expect("a model");
        let sites = |model: &LoadedModel| model.model.program().sites().collect::<Vec<_>>();
        assert_eq!(sites(&copy), sites(&loaded), "{name}");
        assert_eq!(copy.model.program().weights().len(), loaded.model.program().weights().len(), "{name}");
    }
}

#[test]
fn an_outline_has_the_tokenizer_and_the_features_of_its_model() {
    let mut loaded = LoadedModel::builtin(&Default::default()).expect("the built-in model");
    loaded.attach_named_sae("builtin", std::path::Path::new(""), false).expect("its autoencoder");
    let json = serde_json::to_string(&loaded.outline().expect("an outline")).expect("JSON");
    let outline: ModelOutline = serde_json::from_str(&json).expect("an outline");
    let copy = LoadedModel::without_weights(&outline).expect("a model");
    let sites = |model: &LoadedModel| model.model.program().sites().collect::<Vec<_>>();
    assert_eq!(sites(&copy), sites(&loaded));
    assert!(sites(&copy).iter().any(|site| site.sae.is_some()));
    for site in sites(&copy) {
        assert_eq!(site.to_string().parse(), Ok(site));
    }
    let text = "Once upon a time, there was a little girl named Zoë. 日本\n\n  <|endoftext|> x";
    let tokens = copy.encode(text).expect("tokens");
    assert_eq!(tokens, loaded.encode(text).expect("tokens"));
    let (own, other) = (loaded.tokenizer().expect("one"), copy.tokenizer().expect("one"));
    assert_eq!(own.decode(&tokens, false), other.decode(&tokens, false));
    assert_eq!((own.special(), &loaded.eos), (other.special(), &copy.eos));
    assert_eq!(own.to_json().expect("JSON"), other.to_json().expect("JSON"));
}
