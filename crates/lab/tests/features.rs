//! Memory of attached autoencoders. A separate test binary, because allocations of other tests
//! would be counted too.

use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_engine::{Action, Model, Plan, Positions, Reduce, RunOptions, Tap};
use pellucid_kernels::{DType, Matrix, Pool};
use pellucid_lab::counting::{CountingAllocator, during};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::{Arc, Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Held while memory is counted, so that tests do not overlap.
static ALONE: Mutex<()> = Mutex::new(());

const SITE: &str = "layers.0.resid_post";
const ACTS: &str = "layers.0.resid_post/sae.acts";

/// A number from −1 to 1 that looks random.
fn number(row: usize, column: usize) -> f32 {
    let x = (row * 7919 + column * 104_729 + 17).wrapping_mul(2_654_435_761) >> 7;
    (x % 2001) as f32 / 1000.0 - 1.0
}

fn autoencoder(features: usize, d: usize, k: usize) -> Sae {
    let matrix = |seed: usize| {
        Matrix::pack(&Pool::global(), features, d, DType::F32, &|row, out| {
            out.iter_mut().enumerate().for_each(|(column, w)| *w = number(row + seed, column) * 0.1);
        })
    };
    Sae {
        kind: SaeKind::TopK { k, by_decoder_norm: None },
        normalization: InputNormalization::None,
        undo_normalization: true,
        subtract_decoder_bias: false,
        encoder: matrix(1),
        encoder_bias: vec![0.01; features],
        decoders: vec![matrix(2)],
        decoder_biases: vec![vec![0.0; d]],
        skip: None,
    }
}

fn attached(model: &Model, features: usize, k: usize) -> Model {
    let site = model.find(SITE).expect("a site").sites[0];
    let program = model.program();
    let d = program.edge(program.edge_of(site).expect("an edge")).width;
    model.attach(Arc::new(autoencoder(features, d, k)), site, site).expect("attached")
}

/// Peak memory of a run of `tokens` tokens, in bytes.
fn peak(model: &Model, plan: &Plan, tokens: u32) -> usize {
    let row = [(0..tokens).map(|i| i * 7 % 50).collect::<Vec<u32>>()];
    let run = || model.run(&row, plan, &RunOptions::default()).expect("a run");
    during(run).1.expect("counted").peak_live as usize
}

fn load() -> LoadedModel {
    let to = golden::temp_models::with_config("llama", |config| config["max_position_embeddings"] = 8192.into());
    LoadedModel::open(to.path(), &LoadOptions::default(), &mut |_| {}).expect("a model")
}

#[test]
fn a_sparse_capture_never_allocates_the_dense_activations() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const FEATURES: usize = 4096;
    const TOKENS: u32 = 1024;
    let model = attached(&load().model, FEATURES, 8);
    let sparse = Plan::of([Tap::new(ACTS, Action::Capture(Some(Reduce::Sparse)))]);
    let whole = Plan::of([Tap::new(ACTS, Action::Capture(None))]);
    // Threads allocate their scratch buffers on first use.
    peak(&model, &sparse, TOKENS);
    let plain = peak(&model, &Plan::of([Tap::new(SITE, Action::Capture(Some(Reduce::Norm)))]), TOKENS);
    let (sparse_peak, dense_peak) = (peak(&model, &sparse, TOKENS), peak(&model, &whole, TOKENS));
    let dense = 4 * FEATURES * TOKENS as usize;
    assert!(dense_peak >= plain + dense, "the dense capture allocates [tokens, features]: {dense_peak}");
    // Pre-activations of 64 tokens at a time, and the lists.
    let extra = sparse_peak.saturating_sub(plain);
    assert!(extra < dense / 6, "{extra} bytes, where dense activations take {dense}");
    let explained = sparse.explain(&model, &[TOKENS as usize]).expect("an explanation");
    assert!(explained.capture_bytes <= TOKENS as usize * (8 * 8 + 8));
    assert!(explained.feature_bytes == 4 * 64 * FEATURES);
}

#[test]
fn ten_attached_autoencoders_that_no_plan_names_take_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the model");
    let plan = Plan::of([Tap::new("logits", Action::Capture(None)).positions(Positions::Last)]);
    let mut model = loaded.model.clone();
    for layer in 0..5 {
        for point in ["resid_post", "mlp_out"] {
            let Ok(found) = model.find(&format!("layers.{layer}.{point}")) else { continue };
            let site = found.sites[0];
            let width = model.program().edge(model.program().edge_of(site).expect("an edge")).width;
            model = model.attach(Arc::new(autoencoder(64, width, 4)), site, site).expect("attached");
        }
    }
    assert!(model.saes().len() >= 8, "{} autoencoders", model.saes().len());
    let tokens = 200;
    peak(&loaded.model, &plan, tokens);
    peak(&model, &plan, tokens);
    let (plain, with) = (peak(&loaded.model, &plan, tokens), peak(&model, &plan, tokens));
    // The lists of edges are longer; no activation is copied.
    assert!(with < plain + 64 * 1024, "{with} bytes instead of {plain}");
}
