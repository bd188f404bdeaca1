//! Mutations of inputs, from a seeded generator: the same seed gives the same inputs.

use serde_json::{Value, json};

/// What an input is, which decides how it is mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    Binary,
    /// A JSON document: also mutated value by value.
    Json,
    /// Text: mutated without breaking UTF-8 most of the time.
    Text,
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, or 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.bits() % end as u64) as usize }
    }

    fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Numbers at which lengths and offsets overflow or change sign.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    255,
    256,
    65_535,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Pieces of templates and of JSON.
const PIECES: [&str; 24] = [
    "{{",
    "}}",
    "{%",
    "%}",
    " for m in messages ",
    " endfor ",
    " if ",
    " endif ",
    " set x = ",
    "|tojson",
    "|length",
    "range(1000000)",
    "namespace(a=1)",
    "messages",
    "[",
    "]",
    "{",
    "}",
    "\"",
    ":",
    ",",
    "null",
    "-1",
    "1e309",
];

/// Returns a mutated copy of one of the seeds.
pub fn mutate(random: &mut Random, seeds: &[Vec<u8>], kind: Kind) -> Vec<u8> {
    let mut data = random.choose(seeds).clone();
    if kind == Kind::Json
        && random.below(4) > 0
        && let Ok(mut value) = serde_json::from_slice::<Value>(&data)
    {
        for _ in 0..=random.below(3) {
            mutate_json(random, &mut value);
        }
        return value.to_string().into_bytes();
    }
    for _ in 0..=random.below(5) {
        mutate_bytes(random, &mut data, seeds, kind);
    }
    // Larger inputs only make executions slower.
    data.truncate(1 << 18);
    data
}

fn mutate_bytes(random: &mut Random, data: &mut Vec<u8>, seeds: &[Vec<u8>], kind: Kind) {
    let at = random.below(data.len() + 1);
    let length = random.below(data.len() - at + 1).min(1 << random.below(10));
    match random.below(if kind == Kind::Text { 5 } else { 9 }) {
        0 => drop(data.drain(at..at + length)),
        1 => {
            let copy = data[at..at + length].to_vec();
            let to = random.below(data.len() + 1);
            data.splice(to..to, copy);
        }
        2 => {
            let other = random.choose(seeds);
            let from = random.below(other.len() + 1);
            let count = random.below(other.len() - from + 1).min(256);
            data.splice(at..at, other[from..from + count].iter().copied());
        }
        3 => drop(data.splice(at..at, random.choose(&PIECES).bytes())),
        4 => {
            // A chain of one piece, for recursion.
            let piece = *random.choose(&PIECES);
            let count = 1 << random.below(12);
            data.splice(at..at, piece.bytes().cycle().take(piece.len() * count));
        }
        5 => {
            if let Some(byte) = data.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        6 => {
            if let Some(byte) = data.get_mut(at) {
                *byte = random.bits() as u8;
            }
        }
        7 => {
            let edge = random.choose(&EDGES).wrapping_add(random.below(3) as u64).wrapping_sub(1);
            let width = *random.choose(&[1, 2, 4, 8]);
            let end = (at + width).min(data.len());
            data[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
        }
        _ => data.truncate(at),
    }
}

/// Replaces, removes or duplicates one value of a document.
fn mutate_json(random: &mut Random, value: &mut Value) {
    match value {
        Value::Object(object) if !object.is_empty() && random.below(8) > 0 => {
            let keys: Vec<String> = object.keys().cloned().collect();
            let key = random.choose(&keys);
            match random.below(12) {
                0 => drop(object.remove(key)),
                1 => {
                    let other = object[random.choose(&keys)].clone();
                    object.insert(key.clone(), other);
                }
                _ => mutate_json(random, &mut object[key]),
            }
        }
        Value::Array(array) if !array.is_empty() && random.below(8) > 0 => {
            let at = random.below(array.len());
            match random.below(6) {
                0 => drop(array.remove(at)),
                1 => array.insert(at, array[at].clone()),
                _ => mutate_json(random, &mut array[at]),
            }
        }
        other => *other = odd_value(random, other),
    }
}

/// A value that a reader may not expect in this position.
fn odd_value(random: &mut Random, old: &Value) -> Value {
    let number = old.as_i64().unwrap_or(1);
    match random.below(20) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(number.wrapping_add(1)),
        3 => json!(number.wrapping_sub(1)),
        4 => json!(number.wrapping_neg()),
        5 => json!(number.wrapping_mul(2)),
        6 => json!(*random.choose(&EDGES)),
        7 => json!(-(random.below(1000) as i64)),
        8 => json!(0),
        9 => json!(1e30),
        10 => json!(0.5),
        11 => json!(-0.0),
        12 => json!(""),
        13 => json!("x".repeat(1 << random.below(10))),
        14 => json!([]),
        15 => json!({}),
        16 => json!([number, number]),
        17 => json!(number.to_string()),
        18 => json!(random.below(64)),
        _ => json!(*random.choose(&PIECES)),
    }
}
