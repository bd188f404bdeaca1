//! Panel layout of the quantized formats: where a file block has its codes and scales, and how a
//! panel arranges them.
//!
//! All formats are `value = code · scale + offset` with an unsigned code of 4 to 8 bits; 16 or 32
//! values share a scale and an offset. In a panel, 32 rows of 16 columns are a *span*: a header
//! with the scales, then the codes, as many bytes as in the file. 16 adjacent 32-bit words hold the
//! codes of the 16 columns for eight rows (four for 8-bit codes), so nothing ever moves between
//! lanes. Adjacent rows are in adjacent words, at the same bit position, the *slot*: one mask
//! extracts the codes of a slot, and the power of two they are too large by is folded into the
//! scale, which is exact. Formats with blocks of 256 values group eight spans in a *block*, whose
//! header has the values that these share.

#![allow(non_camel_case_types, reason = "formats are named as ggml names them")]

use crate::encoding::Encoding;
use crate::simd::Lanes;
use crate::tile::PANEL;

/// Rows per span.
pub(crate) const SPAN: usize = 32;
/// Bytes of one f16 per column.
const F16_ROW_BYTES: usize = 2 * PANEL;

/// A quantized panel format, and its conversion from the blocks of a file.
pub(crate) trait QuantFormat {
    /// The file's encoding.
    const ENCODING: Encoding;
    /// Bits per code: 4 or 8, or 5 or 6 split into the low four bits and extra words for the upper
    /// bits.
    const BITS: usize;
    /// Spans per block.
    const SPANS_PER_BLOCK: usize = 1;
    /// Bytes of the block header.
    const BLOCK_HEADER: usize = 0;
    /// Bytes of a span header.
    const SPAN_HEADER: usize;
    /// Rows that share a scale (a scale group).
    const ROWS_PER_SCALE: usize = SPAN;

    /// Unpacks the codes of one span from a file block.
    fn unpack_codes(block: &[u8], span: usize) -> [u8; SPAN];
    /// Copies a file block's scales into column `lane` of a panel block's headers.
    fn write_headers(block: &[u8], lane: usize, panel: &mut [u8]);
    /// Loads scale and offset of one vector of columns, starting at `column`, for scale group
    /// `group` of a span.
    ///
    /// # Safety
    /// `block` must point to a block of a panel, and `span` to one of its spans.
    unsafe fn load_scales<L: Lanes>(l: L, block: *const u8, span: *const u8, column: usize, group: usize) -> [L::V; 2];
    /// Adjusts scale and offset for codes that are `factor` (a power of two) times too large.
    #[inline(always)]
    fn rescale<L: Lanes>(l: L, [scale, offset]: [L::V; 2], factor: f32) -> [L::V; 2] {
        [l.mul(scale, l.splat(1.0 / factor)), offset]
    }
    /// Converts codes to values. The product is exact, so the FMA rounds as the format's definition
    /// does.
    #[inline(always)]
    fn dequantize<L: Lanes>(l: L, codes: L::V, [scale, offset]: [L::V; 2]) -> L::V {
        l.fma(codes, scale, offset)
    }
}

/// Bytes of a span: header and codes.
pub(crate) const fn span_bytes<F: QuantFormat>() -> usize {
    F::SPAN_HEADER + F::BITS * SPAN * PANEL / 8
}

/// Bytes of a block in a panel.
pub(crate) const fn block_bytes<F: QuantFormat>() -> usize {
    F::BLOCK_HEADER + F::SPANS_PER_BLOCK * span_bytes::<F>()
}

/// Bits per slot: a whole code, or its low four bits if the upper bits are in extra words.
pub(crate) const fn slot_bits<F: QuantFormat>() -> usize {
    if F::BITS == 8 { 8 } else { 4 }
}

/// Words that hold a slot for adjacent rows: row `k` is at slot `k / words_per_slot` of word
/// `k % words_per_slot`.
pub(crate) const fn words_per_slot<F: QuantFormat>() -> usize {
    slot_bits::<F>()
}

/// Number of adjacent rows whose upper bits share one nibble of an extra word.
const fn codes_per_nibble<F: QuantFormat>() -> usize {
    4 / (F::BITS - 4)
}

/// Packs the codes of one column of a span into words: 8-bit codes, or the low nibbles followed by
/// the upper bits.
#[inline(always)]
pub(crate) fn pack_words<F: QuantFormat>(codes: &[u8; SPAN]) -> [u32; 8] {
    if F::BITS == 8 {
        return std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|slot| codes[8 * slot + word])));
    }
    let mut words = [0; 8];
    for i in 0..4 {
        // Two slots share a byte: combine four rows of each at once.
        let four =
            |at: usize| u32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]]) & 0x0F0F_0F0F;
        let pair = (four(8 * i) | four(8 * i + 4) << 4).to_le_bytes();
        for (word, byte) in words.iter_mut().zip(pair) {
            *word |= u32::from(byte) << (8 * i);
        }
    }
    if slot_bits::<F>() != F::BITS {
        for (upper_word, word) in words[4..F::BITS].iter_mut().enumerate() {
            let nibble = |slot: usize| {
                let codes = &codes[4 * slot + upper_word * codes_per_nibble::<F>()..][..codes_per_nibble::<F>()];
                codes.iter().rev().fold(0, |bits, &code| bits << (F::BITS - 4) | u32::from(code >> 4))
            };
            // Stored four bits above the slot, which is where they belong in the code; the last
            // slot wraps around.
            *word = (0..8).fold(0, |word, slot| word | nibble(slot) << (4 * slot)).rotate_left(4);
        }
    }
    words
}

/// A slot: the bit position of a code within its word.
#[derive(Clone, Copy)]
pub(crate) struct CodeSlot(usize);

impl CodeSlot {
    /// Slot `index` of a span, or `None` if it is not in scale group `group`.
    #[inline(always)]
    pub fn in_group<F: QuantFormat>(group: usize, index: usize) -> Option<CodeSlot> {
        let row = index * words_per_slot::<F>();
        (row < SPAN && row / F::ROWS_PER_SCALE == group).then_some(CodeSlot(index))
    }

    /// Row of the span whose code is in this slot of word `word`.
    #[inline(always)]
    pub fn row<F: QuantFormat>(self, word: usize) -> usize {
        self.0 * words_per_slot::<F>() + word
    }

    /// Position of the lowest bit.
    #[inline(always)]
    fn shift<F: QuantFormat>(self) -> u32 {
        (self.0 * slot_bits::<F>()) as u32
    }

    /// Whether this slot has the highest bits of a word. An integer-to-float conversion would take
    /// them for a sign, so these codes are shifted down.
    #[inline(always)]
    fn is_last<F: QuantFormat>(self) -> bool {
        (self.0 + 1) * slot_bits::<F>() == 32
    }

    /// Folds the power of two of this slot's codes into their scales.
    #[inline(always)]
    pub fn adjust_scales<L: Lanes, F: QuantFormat>(self, l: L, scales: [L::V; 2]) -> [L::V; 2] {
        let factor = if self.is_last::<F>() { 1.0 } else { (1u32 << self.shift::<F>()) as f32 };
        F::rescale(l, scales, factor)
    }

    /// Loads this slot's codes of word `word` for one vector of columns, starting at `column`. They
    /// are too large by the power of two that [`adjust_scales`](Self::adjust_scales) compensates.
    ///
    /// # Safety
    /// `codes` must point to the codes of a span that has a whole vector of columns from `column`
    /// on.
    #[inline(always)]
    pub unsafe fn load_codes<L: Lanes, F: QuantFormat>(
        self,
        l: L,
        codes: *const u8,
        word: usize,
        column: usize,
    ) -> L::V {
        // SAFETY: a span holds `BITS` words of 16 columns.
        let at = |word: usize| unsafe { l.load_words(codes.add((word * PANEL + column) * 4)) };
        let (low, upper_mask) = (at(word), (1u32 << (F::BITS - 4)) - 1);
        let low = if self.is_last::<F>() {
            l.shift_right(low, self.shift::<F>())
        } else {
            l.mask(low, ((1 << slot_bits::<F>()) - 1) << self.shift::<F>())
        };
        if slot_bits::<F>() == F::BITS {
            return l.to_floats(low);
        }
        // Shifted so that the upper bits of every slot but the last are in place.
        let shift = word % codes_per_nibble::<F>() * (F::BITS - 4);
        let upper = l.shift_right(at(4 + word / codes_per_nibble::<F>()), shift as u32);
        let upper = if self.is_last::<F>() {
            l.shift_left(l.mask(upper, upper_mask), 4)
        } else {
            l.mask(upper, upper_mask << (self.shift::<F>() + 4))
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

/// Copies the f16 at byte `from` of a file block to element `index` of a header.
#[inline(always)]
fn copy_f16(block: &[u8], from: usize, index: usize, header: &mut [u8]) {
    header[2 * index..2 * index + 2].copy_from_slice(&block[from..from + 2]);
}

/// Formats with blocks of 32 values: an f16 scale, an f16 minimum or a constant zero point, and the
/// codes.
macro_rules! simple_format {
    ($name:ident, $bits:literal, $zero_point:expr, $codes:expr) => {
        pub(crate) struct $name;

        impl QuantFormat for $name {
            const ENCODING: Encoding = Encoding::$name;
            const BITS: usize = $bits;
            const SPAN_HEADER: usize = if $zero_point.is_some() { F16_ROW_BYTES } else { 2 * F16_ROW_BYTES };

            #[inline(always)]
            fn unpack_codes(block: &[u8], _span: usize) -> [u8; SPAN] {
                let codes: fn(&[u8]) -> [u8; SPAN] = $codes;
                codes(block)
            }

            #[inline(always)]
            fn write_headers(block: &[u8], lane: usize, panel: &mut [u8]) {
                let count = Self::SPAN_HEADER / F16_ROW_BYTES;
                (0..count).for_each(|i| copy_f16(block, 2 * i, i * PANEL + lane, panel));
            }

            #[inline(always)]
            unsafe fn load_scales<L: Lanes>(
                l: L,
                _block: *const u8,
                span: *const u8,
                column: usize,
                _group: usize,
            ) -> [L::V; 2] {
                let zero_point: Option<f32> = $zero_point;
                // SAFETY: the header begins with 16 scales, followed by 16 minima if there is no
                // zero point.
                unsafe {
                    let scale = l.load_f16(span.add(2 * column).cast());
                    let offset = match zero_point {
                        Some(zero_point) => l.mul(scale, l.splat(-zero_point)),
                        None => l.load_f16(span.add(F16_ROW_BYTES + 2 * column).cast()),
                    };
                    [scale, offset]
                }
            }
        }
    };
}

simple_format!(Q4_0, 4, Some(8.0), |block| nibbles(&block[2..]));
simple_format!(Q4_1, 4, None::<f32>, |block| nibbles(&block[4..]));
simple_format!(Q5_0, 5, Some(16.0), |block| join(nibbles(&block[6..]), fifth_bits(&block[2..])));
simple_format!(Q5_1, 5, None::<f32>, |block| join(nibbles(&block[8..]), fifth_bits(&block[4..])));
simple_format!(Q8_0, 8, Some(128.0), |block| {
    let codes = &block[2..][..SPAN];
    std::array::from_fn(|k| codes[k] ^ 0x80)
});

/// Unpacks the 6-bit scale and minimum of group `i`, of the eight that Q4_K and Q5_K store in
/// twelve bytes.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        return (packed[i] & 63, packed[i + 4] & 63);
    }
    (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
}

/// Formats with blocks of 256 values: an f16 scale and an f16 minimum, each multiplied by a 6-bit
/// factor per 32 values.
macro_rules! k_format {
    ($name:ident, $bits:literal, $codes:expr) => {
        pub(crate) struct $name;

        impl QuantFormat for $name {
            const ENCODING: Encoding = Encoding::$name;
            const BITS: usize = $bits;
            const SPANS_PER_BLOCK: usize = 8;
            const BLOCK_HEADER: usize = 2 * F16_ROW_BYTES;
            const SPAN_HEADER: usize = 2 * PANEL;

            #[inline(always)]
            fn unpack_codes(block: &[u8], span: usize) -> [u8; SPAN] {
                let codes: fn(&[u8], usize) -> [u8; SPAN] = $codes;
                codes(block, span)
            }

            #[inline(always)]
            fn write_headers(block: &[u8], lane: usize, panel: &mut [u8]) {
                (0..2).for_each(|i| copy_f16(block, 2 * i, i * PANEL + lane, panel));
                for (i, span) in panel[Self::BLOCK_HEADER..].chunks_exact_mut(span_bytes::<Self>()).enumerate() {
                    (span[lane], span[PANEL + lane]) = scale_and_minimum(&block[4..16], i);
                }
            }

            #[inline(always)]
            unsafe fn load_scales<L: Lanes>(
                l: L,
                block: *const u8,
                span: *const u8,
                column: usize,
                _group: usize,
            ) -> [L::V; 2] {
                // SAFETY: the block header holds 2 × 16 f16, the span header 2 × 16 bytes.
                unsafe {
                    let (halves, bytes) = (block.add(2 * column), span.add(column));
                    let scale = l.mul(l.load_f16(halves.cast()), l.load_u8(bytes));
                    let minimum = l.mul(l.load_f16(halves.add(F16_ROW_BYTES).cast()), l.load_u8(bytes.add(PANEL)));
                    [scale, l.sub(l.splat(0.0), minimum)]
                }
            }
        }
    };
}

/// 64 values are stored in 32 bytes: the low nibbles are the first span, the high nibbles the
/// second.
#[inline(always)]
fn span_nibbles(packed: &[u8], span: usize) -> [u8; SPAN] {
    let packed = &packed[span / 2 * SPAN..][..SPAN];
    std::array::from_fn(|k| packed[k] >> (span % 2 * 4) & 15)
}

k_format!(Q4_K, 4, |block, span| span_nibbles(&block[16..], span));
k_format!(Q5_K, 5, |block, span| {
    let fifth = &block[16..][..SPAN];
    join(span_nibbles(&block[48..], span), std::array::from_fn(|k| (fifth[k] >> span & 1) << 4))
});

/// 6-bit codes; an f16 scale for 256 values, multiplied by a signed byte per 16 values.
pub(crate) struct Q6_K;

impl QuantFormat for Q6_K {
    const ENCODING: Encoding = Encoding::Q6_K;
    const BITS: usize = 6;
    const SPANS_PER_BLOCK: usize = 8;
    const BLOCK_HEADER: usize = F16_ROW_BYTES;
    const SPAN_HEADER: usize = 2 * PANEL;
    const ROWS_PER_SCALE: usize = SPAN / 2;

    #[inline(always)]
    fn unpack_codes(block: &[u8], span: usize) -> [u8; SPAN] {
        let quarter = span % 4;
        let low = &block[span / 4 * 64 + quarter % 2 * SPAN..][..SPAN];
        let high = &block[128 + span / 4 * SPAN..][..SPAN];
        std::array::from_fn(|k| {
            let low = low[k] >> (quarter / 2 * 4) & 15;
            low | (high[k] >> (2 * quarter) & 3) << 4
        })
    }

    #[inline(always)]
    fn write_headers(block: &[u8], lane: usize, panel: &mut [u8]) {
        copy_f16(block, 208, lane, panel);
        for (i, span) in panel[Self::BLOCK_HEADER..].chunks_exact_mut(span_bytes::<Self>()).enumerate() {
            // Stored unsigned, offset by 128.
            (span[lane], span[PANEL + lane]) = (block[192 + 2 * i] ^ 0x80, block[193 + 2 * i] ^ 0x80);
        }
    }

    #[inline(always)]
    unsafe fn load_scales<L: Lanes>(l: L, block: *const u8, span: *const u8, column: usize, group: usize) -> [L::V; 2] {
        // SAFETY: the block header holds 16 f16, the span header 2 × 16 bytes.
        unsafe {
            let by = l.sub(l.load_u8(span.add(group * PANEL + column)), l.splat(128.0));
            [l.mul(l.load_f16(block.add(2 * column).cast()), by), l.splat(32.0)]
        }
    }

    #[inline(always)]
    fn rescale<L: Lanes>(l: L, [scale, zero_point]: [L::V; 2], factor: f32) -> [L::V; 2] {
        [l.mul(scale, l.splat(1.0 / factor)), l.mul(zero_point, l.splat(factor))]
    }

    /// The product of code and scale is not exact here, so the zero point is subtracted first, as
    /// in the format's definition.
    #[inline(always)]
    fn dequantize<L: Lanes>(l: L, codes: L::V, [scale, zero_point]: [L::V; 2]) -> L::V {
        l.mul(l.sub(codes, zero_point), scale)
    }
}
