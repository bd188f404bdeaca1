//! The built-in model, embedded in the binary: a small Llama that writes simple children's stories,
//! so that every command works without a network. `builtin/README.md` describes its training.

use crate::tokenizer::Sidecars;

/// Its name on the command line.
pub const NAME: &str = "builtin";
/// Its `config.json`.
pub const CONFIG: &[u8] = include_bytes!("../builtin/config.json");
/// Its weights, bf16.
pub const WEIGHTS: &[u8] = include_bytes!("../builtin/model.safetensors");
/// Its `tokenizer.json`.
pub const TOKENIZER: &[u8] = include_bytes!("../builtin/tokenizer.json");

/// `cfg.json` of its sparse autoencoder, in the layout of SAELens. `builtin/sae/README.md`
/// describes its training and states its quality.
pub const SAE_CONFIG: &[u8] = include_bytes!("../builtin/sae/cfg.json");
/// `sae_weights.safetensors` of its sparse autoencoder, f16.
pub const SAE_WEIGHTS: &[u8] = include_bytes!("../builtin/sae/sae_weights.safetensors");

const TOKENIZER_CONFIG: &[u8] = include_bytes!("../builtin/tokenizer_config.json");
const GENERATION_CONFIG: &[u8] = include_bytes!("../builtin/generation_config.json");

/// The other files that the tokenizer reads.
pub(crate) fn sidecars() -> Sidecars<'static> {
    Sidecars {
        tokenizer_config: Some(TOKENIZER_CONFIG),
        generation_config: Some(GENERATION_CONFIG),
        config: Some(CONFIG),
        ..Sidecars::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use serde_json::Value;

    #[test]
    fn the_autoencoder_fits_the_model_and_has_finite_unit_decoder_rows() {
        let [model, sae] = [CONFIG, SAE_CONFIG].map(|text| serde_json::from_slice::<Value>(text).expect("JSON"));
        let number = |config: &Value, key: &str| config[key].as_u64().expect("a number") as usize;
        let (width, features, k) = (number(&sae, "d_in"), number(&sae, "d_sae"), number(&sae, "k"));
        assert_eq!(width, number(&model, "hidden_size"));
        assert!((1..features).contains(&k), "{k} of {features}");
        let weights = Checkpoint::from_static(SAE_WEIGHTS, NAME).expect("a safetensors file");
        let shapes = [
            ("W_enc", vec![width, features]),
            ("W_dec", vec![features, width]),
            ("b_enc", vec![features]),
            ("b_dec", vec![width]),
        ];
        for (name, shape) in &shapes {
            let tensor = weights.get(name).expect("a tensor");
            assert_eq!(&tensor.shape, shape, "{name}");
            let values: Vec<f32> = weights
                .bytes(tensor)
                .chunks_exact(2)
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect();
            assert!(values.iter().all(|x| x.is_finite()), "{name}");
            if *name == "W_dec" {
                let norms = values.chunks_exact(width).map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt());
                assert!(norms.into_iter().all(|norm| (norm - 1.0).abs() < 1e-2));
            }
        }
    }
}
