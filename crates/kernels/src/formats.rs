//! The block formats that are kept in panels: where a file's block has its codes and scales, and how a panel arranges them.
//!
//! All of them are `value = code · scale + offset` with an unsigned code of a few bits, a scale and an offset for 16 or 32 values. In a panel,
//! 32 steps of sixteen columns are a *span*: a head with what its scales are made of, then the codes, as many bytes as in
//! the file. Sixteen adjacent words hold the codes of the sixteen columns for eight steps (four, if codes are bytes), and nothing ever moves
//! between lanes. Adjacent steps are in adjacent words, at the same *place* of each: so a whole place is taken out by one mask, and what it
//! lies too high by is a power of two that the place's scale makes up for, without a shift and without rounding. Formats of 256 values
//! keep in a *block* of eight spans what these share.

#![allow(non_camel_case_types, reason = "formats are named as ggml names them")]

use crate::encoding::Encoding;
use crate::simd::Lanes;
use crate::tile::PANEL;

/// Steps of a span.
pub(crate) const SPAN: usize = 32;
/// Bytes of sixteen half-precision numbers.
const HALVES: usize = 2 * PANEL;

/// A format of panels, and how to make it from the blocks of a file.
pub(crate) trait Format {
    /// The file's encoding.
    const ENCODING: Encoding;
    /// Bits of a code: eight, or four in words of their own and the rest in further ones.
    const BITS: usize;
    /// Spans of a block.
    const SPANS: usize = 1;
    /// Bytes of a block's head.
    const HEAD: usize = 0;
    /// Bytes of a span's head.
    const SPAN_HEAD: usize;
    /// Steps that share a scale.
    const STEPS: usize = SPAN;

    /// The codes of one row of a span.
    fn codes(block: &[u8], span: usize) -> [u8; SPAN];
    /// Writes what a row's scales are made of into its lane of a panel's heads.
    fn heads(block: &[u8], lane: usize, panel: &mut [u8]);
    /// Scale and offset of the columns from `column` on, as many as there are lanes, for part `part` of a span.
    ///
    /// # Safety
    /// `block` must be a block of a panel, and `span` one of its spans.
    unsafe fn scales<L: Lanes>(l: L, block: *const u8, span: *const u8, column: usize, part: usize) -> [L::V; 2];
    /// The scale and offset for codes that are `by`, a power of two, times as large.
    #[inline(always)]
    fn for_larger<L: Lanes>(l: L, [scale, offset]: [L::V; 2], by: f32) -> [L::V; 2] {
        [l.mul(scale, l.splat(1.0 / by)), offset]
    }
    /// Values from codes. The product is exact, so fusing it with the sum rounds as the format's definition does.
    #[inline(always)]
    fn values<L: Lanes>(l: L, codes: L::V, [scale, offset]: [L::V; 2]) -> L::V {
        l.fma(codes, scale, offset)
    }
}

/// Bytes of a span, head and codes.
pub(crate) const fn span_bytes<F: Format>() -> usize {
    F::SPAN_HEAD + F::BITS * SPAN * PANEL / 8
}

/// Bytes of a block in a panel.
pub(crate) const fn block_bytes<F: Format>() -> usize {
    F::HEAD + F::SPANS * span_bytes::<F>()
}

/// Bits of a place: a whole code, or its low half where the rest is in further words.
pub(crate) const fn place_bits<F: Format>() -> usize {
    if F::BITS == 8 { 8 } else { 4 }
}

/// Words of a lane in which steps lie side by side: step `k` is at place `k / abreast` of word `k % abreast`.
pub(crate) const fn abreast<F: Format>() -> usize {
    place_bits::<F>()
}

/// Codes whose bits above the low four share four bits of a further word: so many adjacent steps.
const fn sharing<F: Format>() -> usize {
    4 / (F::BITS - 4)
}

/// The words of one row of a span: codes of eight bits, or their low halves and then the rest of them.
#[inline(always)]
pub(crate) fn words<F: Format>(codes: &[u8; SPAN]) -> [u32; 8] {
    if F::BITS == 8 {
        return std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|place| codes[8 * place + word])));
    }
    let mut words = [0; 8];
    for i in 0..4 {
        // Two places share a byte: four steps of each, side by side.
        let four =
            |at: usize| u32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]]) & 0x0F0F_0F0F;
        let pair = (four(8 * i) | four(8 * i + 4) << 4).to_le_bytes();
        for (word, byte) in words.iter_mut().zip(pair) {
            *word |= u32::from(byte) << (8 * i);
        }
    }
    if place_bits::<F>() != F::BITS {
        for (further, word) in words[4..F::BITS].iter_mut().enumerate() {
            let shared = |place: usize| {
                let codes = &codes[4 * place + further * sharing::<F>()..][..sharing::<F>()];
                codes.iter().rev().fold(0, |bits, &code| bits << (F::BITS - 4) | u32::from(code >> 4))
            };
            // Four bits higher than the place, as in the code: those of the last place wrap around.
            *word = (0..8).fold(0, |word, place| word | shared(place) << (4 * place)).rotate_left(4);
        }
    }
    words
}

/// A place of the words of a span.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

impl Place {
    /// Place `number` of a span, if it is in part `part`.
    #[inline(always)]
    pub fn of_part<F: Format>(part: usize, number: usize) -> Option<Place> {
        let step = number * abreast::<F>();
        (step < SPAN && step / F::STEPS == part).then_some(Place(number))
    }

    /// The step of a span that word `word` holds here.
    #[inline(always)]
    pub fn step<F: Format>(self, word: usize) -> usize {
        self.0 * abreast::<F>() + word
    }

    /// The lowest bit.
    #[inline(always)]
    fn bit<F: Format>(self) -> u32 {
        (self.0 * place_bits::<F>()) as u32
    }

    /// Whether it has a word's highest bits. They would be a sign, so these codes are moved down to where they belong.
    #[inline(always)]
    fn is_last<F: Format>(self) -> bool {
        (self.0 + 1) * place_bits::<F>() == 32
    }

    /// Scales for codes that this place takes out.
    #[inline(always)]
    pub fn scales<L: Lanes, F: Format>(self, l: L, scales: [L::V; 2]) -> [L::V; 2] {
        let by = if self.is_last::<F>() { 1.0 } else { (1u32 << self.bit::<F>()) as f32 };
        F::for_larger(l, scales, by)
    }

    /// The codes of the columns from `column` on that word `word` has at this place, times a power of two.
    ///
    /// # Safety
    /// `codes` must be the codes of a span, and its columns from `column` on as many as there are lanes.
    #[inline(always)]
    pub unsafe fn codes<L: Lanes, F: Format>(self, l: L, codes: *const u8, word: usize, column: usize) -> L::V {
        // SAFETY: a span holds `BITS` words of sixteen columns.
        let at = |word: usize| unsafe { l.load_words(codes.add((word * PANEL + column) * 4)) };
        let (low, upper_mask) = (at(word), (1u32 << (F::BITS - 4)) - 1);
        let low = if self.is_last::<F>() {
            l.shift_right(low, self.bit::<F>())
        } else {
            l.mask(low, ((1 << place_bits::<F>()) - 1) << self.bit::<F>())
        };
        if place_bits::<F>() == F::BITS {
            return l.to_floats(low);
        }
        // Moved so that the upper bits of every place but the last are where they belong.
        let moved = word % sharing::<F>() * (F::BITS - 4);
        let upper = l.shift_right(at(4 + word / sharing::<F>()), moved as u32);
        let upper = if self.is_last::<F>() {
            l.shift_left(l.mask(upper, upper_mask), 4)
        } else {
            l.mask(upper, upper_mask << (self.bit::<F>() + 4))
        };
        l.to_floats(l.or(low, upper))
    }
}

#[inline(always)]
fn nibbles(packed: &[u8]) -> [u8; SPAN] {
    let mut codes = [0; SPAN];
    let (low, high) = codes.split_at_mut(SPAN / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(packed) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    codes
}

#[inline(always)]
fn fifth_bits(packed: &[u8]) -> [u8; SPAN] {
    std::array::from_fn(|k| (packed[k / 8] >> (k % 8) & 1) << 4)
}

#[inline(always)]
fn join(low: [u8; SPAN], high: [u8; SPAN]) -> [u8; SPAN] {
    std::array::from_fn(|k| low[k] | high[k])
}

/// Puts the half-precision number at `from` of a block at number `index` of a head.
#[inline(always)]
fn put_half(block: &[u8], from: usize, index: usize, head: &mut [u8]) {
    head[2 * index..2 * index + 2].copy_from_slice(&block[from..from + 2]);
}

/// Formats of 32 values: a scale of half precision, a minimum or a centre that is taken off the codes, and the codes.
macro_rules! plain {
    ($name:ident, $bits:literal, $centre:expr, $codes:expr) => {
        pub(crate) struct $name;

        impl Format for $name {
            const ENCODING: Encoding = Encoding::$name;
            const BITS: usize = $bits;
            const SPAN_HEAD: usize = if $centre.is_some() { HALVES } else { 2 * HALVES };

            #[inline(always)]
            fn codes(block: &[u8], _span: usize) -> [u8; SPAN] {
                let codes: fn(&[u8]) -> [u8; SPAN] = $codes;
                codes(block)
            }

            #[inline(always)]
            fn heads(block: &[u8], lane: usize, panel: &mut [u8]) {
                let numbers = Self::SPAN_HEAD / HALVES;
                (0..numbers).for_each(|number| put_half(block, 2 * number, number * PANEL + lane, panel));
            }

            #[inline(always)]
            unsafe fn scales<L: Lanes>(
                l: L,
                _block: *const u8,
                span: *const u8,
                column: usize,
                _part: usize,
            ) -> [L::V; 2] {
                let centre: Option<f32> = $centre;
                // SAFETY: the head begins with sixteen scales, and has sixteen minima after them if there is no centre.
                unsafe {
                    let scale = l.load_halves(span.add(2 * column).cast());
                    let offset = match centre {
                        Some(centre) => l.mul(scale, l.splat(-centre)),
                        None => l.load_halves(span.add(HALVES + 2 * column).cast()),
                    };
                    [scale, offset]
                }
            }
        }
    };
}

plain!(Q4_0, 4, Some(8.0), |block| nibbles(&block[2..]));
plain!(Q4_1, 4, None::<f32>, |block| nibbles(&block[4..]));
plain!(Q5_0, 5, Some(16.0), |block| join(nibbles(&block[6..]), fifth_bits(&block[2..])));
plain!(Q5_1, 5, None::<f32>, |block| join(nibbles(&block[8..]), fifth_bits(&block[4..])));
plain!(Q8_0, 8, Some(128.0), |block| {
    let codes = &block[2..][..SPAN];
    std::array::from_fn(|k| codes[k] ^ 0x80)
});

/// The six bits of scale and minimum `i` of the eight that Q4_K and Q5_K keep in twelve bytes.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        return (packed[i] & 63, packed[i + 4] & 63);
    }
    (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
}

/// Formats of 256 values with a scale and a minimum, and six bits for each 32 values by which both are multiplied.
macro_rules! with_minima {
    ($name:ident, $bits:literal, $codes:expr) => {
        pub(crate) struct $name;

        impl Format for $name {
            const ENCODING: Encoding = Encoding::$name;
            const BITS: usize = $bits;
            const SPANS: usize = 8;
            const HEAD: usize = 2 * HALVES;
            const SPAN_HEAD: usize = 2 * PANEL;

            #[inline(always)]
            fn codes(block: &[u8], span: usize) -> [u8; SPAN] {
                let codes: fn(&[u8], usize) -> [u8; SPAN] = $codes;
                codes(block, span)
            }

            #[inline(always)]
            fn heads(block: &[u8], lane: usize, panel: &mut [u8]) {
                (0..2).for_each(|number| put_half(block, 2 * number, number * PANEL + lane, panel));
                for (i, span) in panel[Self::HEAD..].chunks_exact_mut(span_bytes::<Self>()).enumerate() {
                    (span[lane], span[PANEL + lane]) = scale_and_minimum(&block[4..16], i);
                }
            }

            #[inline(always)]
            unsafe fn scales<L: Lanes>(
                l: L,
                block: *const u8,
                span: *const u8,
                column: usize,
                _part: usize,
            ) -> [L::V; 2] {
                // SAFETY: both heads hold two times sixteen numbers.
                unsafe {
                    let (halves, bytes) = (block.add(2 * column), span.add(column));
                    let scale = l.mul(l.load_halves(halves.cast()), l.load_bytes(bytes));
                    let minimum = l.mul(l.load_halves(halves.add(HALVES).cast()), l.load_bytes(bytes.add(PANEL)));
                    [scale, l.sub(l.splat(0.0), minimum)]
                }
            }
        }
    };
}

/// 32 bytes are 64 values: their low halves, then their high ones.
#[inline(always)]
fn span_nibbles(packed: &[u8], span: usize) -> [u8; SPAN] {
    let packed = &packed[span / 2 * SPAN..][..SPAN];
    std::array::from_fn(|k| packed[k] >> (span % 2 * 4) & 15)
}

with_minima!(Q4_K, 4, |block, span| span_nibbles(&block[16..], span));
with_minima!(Q5_K, 5, |block, span| {
    let fifth = &block[16..][..SPAN];
    join(span_nibbles(&block[48..], span), std::array::from_fn(|k| (fifth[k] >> span & 1) << 4))
});

/// Six bits, with a signed byte for each 16 of 256 values by which the scale is multiplied.
pub(crate) struct Q6_K;

impl Format for Q6_K {
    const ENCODING: Encoding = Encoding::Q6_K;
    const BITS: usize = 6;
    const SPANS: usize = 8;
    const HEAD: usize = HALVES;
    const SPAN_HEAD: usize = 2 * PANEL;
    const STEPS: usize = SPAN / 2;

    #[inline(always)]
    fn codes(block: &[u8], span: usize) -> [u8; SPAN] {
        let quarter = span % 4;
        let low = &block[span / 4 * 64 + quarter % 2 * SPAN..][..SPAN];
        let high = &block[128 + span / 4 * SPAN..][..SPAN];
        std::array::from_fn(|k| {
            let low = low[k] >> (quarter / 2 * 4) & 15;
            low | (high[k] >> (2 * quarter) & 3) << 4
        })
    }

    #[inline(always)]
    fn heads(block: &[u8], lane: usize, panel: &mut [u8]) {
        put_half(block, 208, lane, panel);
        for (i, span) in panel[Self::HEAD..].chunks_exact_mut(span_bytes::<Self>()).enumerate() {
            // Made unsigned.
            (span[lane], span[PANEL + lane]) = (block[192 + 2 * i] ^ 0x80, block[193 + 2 * i] ^ 0x80);
        }
    }

    #[inline(always)]
    unsafe fn scales<L: Lanes>(l: L, block: *const u8, span: *const u8, column: usize, part: usize) -> [L::V; 2] {
        // SAFETY: the block's head holds sixteen numbers, the span's two times sixteen.
        unsafe {
            let by = l.sub(l.load_bytes(span.add(part * PANEL + column)), l.splat(128.0));
            [l.mul(l.load_halves(block.add(2 * column).cast()), by), l.splat(32.0)]
        }
    }

    #[inline(always)]
    fn for_larger<L: Lanes>(l: L, [scale, centre]: [L::V; 2], by: f32) -> [L::V; 2] {
        [l.mul(scale, l.splat(1.0 / by)), l.mul(centre, l.splat(by))]
    }

    /// The product is not exact here: the centre is taken off first, as the format's definition does.
    #[inline(always)]
    fn values<L: Lanes>(l: L, codes: L::V, [scale, centre]: [L::V; 2]) -> L::V {
        l.mul(l.sub(codes, centre), scale)
    }
}
