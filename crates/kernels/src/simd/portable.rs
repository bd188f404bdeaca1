//! Portable fallback: plain arrays.

use super::{Kernel, LANES, Lanes, PanelSimd, Simd};

/// Vectors are arrays of eight floats.
#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn fused_or_separate(a: f32, b: f32, c: f32) -> f32 {
    // Without hardware support `mul_add` is a slow library call, so this rounds twice.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

macro_rules! lanewise {
    ($a:ident, $b:ident, $f:expr) => {{
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = $f($a[i], $b[i]);
        }
        out
    }};
}

impl Lanes for Portable {
    const COUNT: usize = LANES;
    type V = [f32; LANES];
    type I = [u32; LANES];
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees eight readable floats.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees eight writable floats.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    fn prefetch(self, _p: *const f32) {}
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| x + y)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| x - y)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| x * y)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let mut out = c;
        for i in 0..LANES {
            out[i] = fused_or_separate(a[i], b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| x / y)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| if x < y { x } else { y })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        n.map(|x| f32::from_bits((((x as i32) + 127) << 23) as u32))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        let mut out = y;
        for i in 0..LANES {
            if a[i] < b[i] {
                out[i] = x[i];
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn load_words(self, p: *const u8) -> Self::I {
        // SAFETY: the caller guarantees 32 readable bytes.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    fn shift_right(self, a: Self::I, by: u32) -> Self::I {
        a.map(|x| x >> by)
    }
    #[inline(always)]
    fn shift_left(self, a: Self::I, by: u32) -> Self::I {
        a.map(|x| x << by)
    }
    #[inline(always)]
    fn mask(self, a: Self::I, mask: u32) -> Self::I {
        a.map(|x| x & mask)
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        a.map(|x| x as i32 as f32)
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::V {
        // SAFETY: the caller guarantees eight readable bytes.
        unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(f16_to_f32)
    }
    #[inline(always)]
    unsafe fn load_bf16_panel_row(self, p: *const u16) -> [Self::V; 2] {
        // SAFETY: the caller guarantees 32 readable bytes.
        let words = unsafe { self.load_words(p.cast()) };
        [self.shift_left(words, 16), self.mask(words, 0xffff_0000)].map(|bits| bits.map(f32::from_bits))
    }
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        fn run_outlined<K: Kernel>(l: Portable, kernel: K) {
            kernel.run(l);
        }
        run_outlined(self, kernel);
    }
}

impl PanelSimd for Portable {
    type Panel = Portable;
    #[inline(always)]
    fn panel(self) -> Portable {
        self
    }
}

impl Simd for Portable {
    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        std::array::from_fn(|column| rows.map(|row| row[column]))
    }
}

/// Converts the bits of an f16 to f32 without a branch, so that loops vectorize: a multiplication
/// adjusts the exponent, which is also correct for subnormals; only infinities and NaN need a
/// separate exponent.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff) << 13;
    let number = (f32::from_bits(rest) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = rest | 0x7f80_0000;
    f32::from_bits(sign | if bits & 0x7c00 == 0x7c00 { special } else { number })
}
