//! Choices of a generator: from a seed, or from the bytes of a fuzzer.

/// A sequence of choices. From bytes, each choice uses up one or more of them, so that a fuzzer can
/// vary one choice by changing one byte; after the last byte every choice is the first one.
pub struct Choices<'a> {
    source: Source<'a>,
}

enum Source<'a> {
    Seed(u64),
    Bytes(std::slice::Iter<'a, u8>),
}

impl<'a> Choices<'a> {
    /// Endless pseudo-random choices.
    pub fn from_seed(seed: u64) -> Choices<'static> {
        Choices { source: Source::Seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x2545_F491_4F6C_DD1D) }
    }

    /// The choices that some bytes stand for.
    pub fn from_bytes(bytes: &'a [u8]) -> Choices<'a> {
        Choices { source: Source::Bytes(bytes.iter()) }
    }

    fn byte(&mut self) -> u8 {
        match &mut self.source {
            Source::Seed(state) => {
                // SplitMix64.
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                ((z ^ (z >> 31)) >> 32) as u8
            }
            Source::Bytes(bytes) => bytes.next().copied().unwrap_or(0),
        }
    }

    /// A number below `count`, or 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        let mut number = self.byte() as usize;
        if count > 256 {
            number = number << 8 | self.byte() as usize;
        }
        number % count.max(1)
    }

    /// True in `of` out of 256 cases.
    pub fn chance(&mut self, of: u8) -> bool {
        // After the last byte of a fuzzer nothing more is added.
        self.byte() > 255 - of
    }

    /// One of several things.
    pub fn pick<'t, T>(&mut self, among: &'t [T]) -> &'t T {
        &among[self.below(among.len())]
    }

    /// Some of the numbers below `count`, at least one, in random order.
    pub fn some_below(&mut self, count: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..count.min(64)).collect();
        let wanted = 1 + self.below(left.len().min(4));
        (0..wanted).filter(|_| count > 0).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }

    /// A float: usually moderate, sometimes zero.
    pub fn float(&mut self) -> f32 {
        if self.chance(16) { 0.0 } else { (self.byte() as f32 - 127.5) / 64.0 }
    }

    /// Several floats.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        // Long vectors repeat a few choices, so that a fuzzer's bytes last.
        let few: Vec<f32> = (0..count.clamp(1, 7)).map(|_| self.float()).collect();
        (0..count).map(|index| few[index % few.len()] + 0.01 * (index % 13) as f32).collect()
    }
}
