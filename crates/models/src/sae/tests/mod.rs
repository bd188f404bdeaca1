//! Tests write tiny files of each format with known weights and asymmetric shapes, so that a wrong
//! orientation cannot pass.

mod formats;
mod golden;
mod layers;
mod refusals;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};

use super::{LoadedSae, read_sae};

/// An array with distinct elements.
#[derive(Clone)]
struct Array {
    shape: Vec<usize>,
    values: Vec<f32>,
    /// Save with the strides of the transposed array, as PyTorch does for `parameter.T`.
    column_major: bool,
    integer: bool,
}

impl Array {
    /// Elements between -1 and 1 that depend on index and seed.
    fn new(seed: usize, shape: &[usize]) -> Array {
        let count: usize = shape.iter().product();
        let value = |index: usize| ((index * 37 + seed * 101 + 13) % 211) as f32 / 105.5 - 1.0 + index as f32 * 1e-4;
        Array::of(shape, (0..count).map(value).collect())
    }

    fn of(shape: &[usize], values: Vec<f32>) -> Array {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Array { shape: shape.to_vec(), values, column_major: false, integer: false }
    }

    fn positive(seed: usize, shape: &[usize]) -> Array {
        let array = Array::new(seed, shape);
        Array { values: array.values.iter().map(|x| x.abs() + 0.1).collect(), ..array }
    }

    fn integer(value: i32) -> Array {
        Array { integer: true, ..Array::of(&[], vec![value as f32]) }
    }

    fn column_major(self) -> Array {
        Array { column_major: true, ..self }
    }

    fn at(&self, index: &[usize]) -> f32 {
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (index, size)| flat * size + index);
        self.values[flat]
    }

    /// The elements in the order of the file, and the strides there.
    fn stored(&self) -> (Vec<u8>, Vec<usize>) {
        let mut strides = vec![1; self.shape.len()];
        (1..self.shape.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * self.shape[axis]);
        let mut values = self.values.clone();
        if self.column_major {
            let [rows, cols] = self.shape[..] else { panic!("a matrix") };
            values = (0..rows * cols).map(|at| self.at(&[at % rows, at / rows])).collect();
            strides = vec![1, rows];
        }
        let bytes = |x: &f32| if self.integer { (*x as i32).to_le_bytes() } else { x.to_le_bytes() };
        (values.iter().flat_map(bytes).collect(), strides)
    }
}

/// Tensors of one file.
#[derive(Clone, Default)]
struct Arrays(BTreeMap<String, Array>);

impl Arrays {
    fn with(mut self, name: &str, array: Array) -> Arrays {
        self.0.insert(name.into(), array);
        self
    }

    fn without(mut self, name: &str) -> Arrays {
        self.0.remove(name);
        self
    }

    fn get(&self, name: &str) -> &Array {
        &self.0[name]
    }

    /// Swaps the axes of a matrix, as a mislabelled file has it.
    fn transpose(mut self, name: &str) -> Arrays {
        let array = self.get(name).clone();
        let [rows, cols] = array.shape[..] else { panic!("a matrix") };
        let values = (0..rows * cols).map(|at| array.at(&[at % rows, at / rows])).collect();
        self.0.insert(name.into(), Array::of(&[cols, rows], values));
        self
    }

    /// Writes safetensors, a PyTorch file or a NumPy archive, by the ending of the name.
    fn save(&self, dir: &Path, file: &str) {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => self.save_safetensors(&path),
            Some("npz") => self.save_npz(&path),
            _ => self.save_torch(&path),
        }
    }

    fn save_safetensors(&self, path: &Path) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, array) in &self.0 {
            let start = data.len();
            data.extend(array.stored().0);
            let dtype = if array.integer { "I32" } else { "F32" };
            let entry = serde_json::json!({"dtype": dtype, "shape": array.shape, "data_offsets": [start, data.len()]});
            header.insert(name.clone(), entry);
        }
        let header = serde_json::to_vec(&header).expect("JSON");
        std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).expect("written");
    }

    fn save_npz(&self, path: &Path) {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).expect("a file"));
        for (index, (name, array)) in self.0.iter().enumerate() {
            // Both forms: numpy.savez stores, numpy.savez_compressed deflates.
            let method = if index % 2 == 0 { zip::CompressionMethod::Stored } else { zip::CompressionMethod::Deflated };
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            zip.start_file(format!("{name}.npy"), options).expect("started");
            let sizes: String = array.shape.iter().map(|size| format!("{size},")).collect();
            let order = if array.column_major { "True" } else { "False" };
            let mut header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': ({sizes}), }}");
            while (10 + header.len() + 1) % 64 != 0 {
                header.push(' ');
            }
            header.push('\n');
            let start = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
            zip.write_all(&[start, array.stored().0].concat()).expect("written");
        }
        zip.finish().expect("finished");
    }

    fn save_torch(&self, path: &Path) {
        let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        let int = |number: usize| [&[0x8A, 8], &number.to_le_bytes()[..]].concat();
        let ints =
            |list: &[usize]| [b"(".to_vec(), list.iter().flat_map(|x| int(*x)).collect(), b"t".to_vec()].concat();
        let mut pickle = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).expect("a file"));
        let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for (index, (name, array)) in self.0.iter().enumerate() {
            let (bytes, strides) = array.stored();
            let storage = if array.integer { "IntStorage" } else { "FloatStorage" };
            pickle.extend(text(name));
            pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            pickle.extend(text("storage"));
            pickle.extend(format!("ctorch\n{storage}\n").as_bytes());
            pickle.extend([text(&index.to_string()), text("cpu"), int(array.values.len()), b"tQ".to_vec()].concat());
            pickle.extend([int(0), ints(&array.shape), ints(&strides)].concat());
            pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
            zip.start_file(format!("archive/data/{index}"), stored).expect("started");
            zip.write_all(&bytes).expect("written");
        }
        pickle.extend(b"u.");
        zip.start_file("archive/data.pkl", stored).expect("started");
        zip.write_all(&pickle).expect("written");
        zip.finish().expect("finished");
    }
}

fn write(dir: &Path, file: &str, text: impl AsRef<str>) {
    let path = dir.join(file);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("created");
    std::fs::write(path, text.as_ref()).expect("written");
}

fn read(path: &Path) -> LoadedSae {
    read_sae(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The message and remedy of a refusal.
fn refusal(path: &Path) -> String {
    let error = read_sae(path).map(|_| ()).expect_err("refused");
    format!("{error}\n{}", error.remedy().map(ToString::to_string).unwrap_or_default())
}

fn row(matrix: &pellucid_kernels::Matrix, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; matrix.cols()];
    matrix.row(row, &mut out);
    out
}

/// Checks every element of encoder and decoders, and the sites.
fn check(
    loaded: &LoadedSae,
    encoder: impl Fn(usize, usize) -> f32,
    decoder: impl Fn(usize, usize, usize) -> f32,
    sites: (&[&str], &[&str]),
) {
    let Sae { encoder: matrix, decoders, .. } = &*loaded.sae;
    for feature in 0..loaded.sae.n_features() {
        let expected: Vec<f32> = (0..loaded.sae.d_in()).map(|input| encoder(feature, input)).collect();
        assert_eq!(row(matrix, feature), expected, "encoder of feature {feature}");
        for (slot, matrix) in decoders.iter().enumerate() {
            let expected: Vec<f32> = (0..loaded.sae.d_out()).map(|output| decoder(slot, feature, output)).collect();
            assert_eq!(row(matrix, feature), expected, "decoder {slot} of feature {feature}");
        }
    }
    let names = |sites: &[pellucid_engine::Site]| sites.iter().map(|site| site.to_string()).collect::<Vec<_>>();
    assert_eq!((names(&loaded.info.sites_in), names(&loaded.info.sites_out)), (owned(sites.0), owned(sites.1)));
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

/// Activations and reconstruction (of the first decoder) of one token in f64, straight from the
/// fields.
fn encode_decode(sae: &Sae, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let dot = |a: &[f32], b: &[f64]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum::<f64>();
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (x.len() as f64 - 1.0)).sqrt();
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let unit = (x.len() as f64).sqrt() / norm;
    let (scale, shift, unscale, unshift) = match sae.normalization {
        InputNormalization::None => (1.0, 0.0, 1.0, 0.0),
        InputNormalization::UnitNorm => (unit, 0.0, 1.0 / unit, 0.0),
        InputNormalization::LayerNorm => (1.0 / (deviation + 1e-5), mean, deviation, mean),
        InputNormalization::Constant(c) => (f64::from(c), 0.0, 1.0 / f64::from(c), 0.0),
    };
    let mut u: Vec<f64> = x.iter().map(|x| (x - shift) * scale).collect();
    if sae.subtract_decoder_bias {
        u.iter_mut().zip(&sae.decoder_biases[0]).for_each(|(u, bias)| *u -= f64::from(*bias));
    }
    let n = sae.n_features();
    let raw: Vec<f64> = (0..n).map(|feature| dot(&row(&sae.encoder, feature), &u)).collect();
    let pre: Vec<f64> = raw.iter().zip(&sae.encoder_bias).map(|(raw, bias)| raw + f64::from(*bias)).collect();
    let top = |key: &dyn Fn(usize) -> f64, k: usize| {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
        order.truncate(k);
        order
    };
    let acts: Vec<f64> = match &sae.kind {
        SaeKind::Relu => pre.iter().map(|p| p.max(0.0)).collect(),
        SaeKind::JumpRelu { threshold } => {
            pre.iter().zip(threshold).map(|(p, t)| if *p > f64::from(*t) { p.max(0.0) } else { 0.0 }).collect()
        }
        SaeKind::TopK { k, by_decoder_norm: None } => {
            let kept = top(&|feature| pre[feature], *k);
            (0..n).map(|feature| if kept.contains(&feature) { pre[feature].max(0.0) } else { 0.0 }).collect()
        }
        SaeKind::AbsTopK { k } => {
            let kept = top(&|feature| pre[feature].abs(), *k);
            (0..n).map(|feature| if kept.contains(&feature) { pre[feature] } else { 0.0 }).collect()
        }
        SaeKind::Gated { gate_bias, magnitude_bias, log_scale } => (0..n)
            .map(|j| {
                let open = raw[j] + f64::from(gate_bias[j]) > 0.0;
                let value = raw[j] * f64::from(log_scale[j]).exp() + f64::from(magnitude_bias[j]);
                if open { value.max(0.0) } else { 0.0 }
            })
            .collect(),
        other => panic!("{other:?}"),
    };
    let mut recon: Vec<f64> = sae.decoder_biases[0].iter().map(|bias| f64::from(*bias)).collect();
    for (feature, act) in acts.iter().enumerate() {
        recon.iter_mut().zip(row(&sae.decoders[0], feature)).for_each(|(y, w)| *y += act * f64::from(w));
    }
    recon.iter_mut().for_each(|y| *y = *y * unscale + unshift);
    if let Some(skip) = &sae.skip {
        recon.iter_mut().enumerate().for_each(|(output, y)| *y += dot(&row(skip, output), x));
    }
    (acts, recon)
}
