//! Eight lanes of f32: one trait, an AVX2+FMA implementation and a portable one, chosen at run time.
//!
//! Kernels are written once, generic over [`Simd`] and `#[inline(always)]`; the [`dispatch!`](crate::dispatch) macro instantiates them
//! inside a function compiled for AVX2 and FMA and once more portably, and picks at run time. The portable lanes are a plain array,
//! which compilers turn into SSE2 on x86-64 and into NEON (with fused multiply-add) on aarch64.

use std::sync::OnceLock;

/// Lanes of a vector.
pub const LANES: usize = 8;

/// Eight f32 lanes. Implementations promise lane-wise IEEE arithmetic; `fma` is fused where the hardware fuses.
pub trait Simd: Copy {
    /// The vector type.
    type V: Copy;
    /// Eight words of 32 bits.
    type I: Copy;
    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Reads eight floats.
    ///
    /// # Safety
    /// `p` must be valid for reading eight floats; no alignment is needed.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Writes eight floats.
    ///
    /// # Safety
    /// `p` must be valid for writing eight floats; no alignment is needed.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Asks for the cache line at `p`, which need not exist.
    fn prefetch(self, p: *const f32);
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Lane-wise maximum.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise minimum.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Rounds to the nearest integer.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for integral `n` in -126..=127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// `a < b ? x : y`, lane by lane.
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;

    /// Reads eight words.
    ///
    /// # Safety
    /// `p` must be valid for reading 32 bytes; no alignment is needed.
    unsafe fn load_words(self, p: *const u8) -> Self::I;
    /// Words moved to the right by `by` bits.
    fn shift_right(self, a: Self::I, by: u32) -> Self::I;
    /// Words moved to the left by `by` bits.
    fn shift_left(self, a: Self::I, by: u32) -> Self::I;
    /// The bits of each word that are set in `mask`.
    fn mask(self, a: Self::I, mask: u32) -> Self::I;
    /// The bits that are set in either.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Words as numbers, which must be below 2³¹.
    fn to_floats(self, a: Self::I) -> Self::V;
    /// Words that are the bits of floats.
    fn as_floats(self, a: Self::I) -> Self::V;
    /// Reads eight unsigned bytes as numbers.
    ///
    /// # Safety
    /// `p` must be valid for reading eight bytes.
    unsafe fn load_bytes(self, p: *const u8) -> Self::V;
    /// Reads eight numbers of half precision.
    ///
    /// # Safety
    /// `p` must be valid for reading sixteen bytes; no alignment is needed.
    unsafe fn load_halves(self, p: *const u16) -> Self::V;
    /// Rows become columns.
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES];

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array holds eight floats.
        unsafe { self.store(out.as_mut_ptr(), v) };
        out
    }

    /// A vector from up to eight floats, the rest filled with `fill`.
    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> Self::V {
        if x.len() == LANES {
            // SAFETY: the slice holds eight floats.
            return unsafe { self.load(x.as_ptr()) };
        }
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        // SAFETY: the array holds eight floats.
        unsafe { self.load(lanes.as_ptr()) }
    }

    /// Writes the first lanes into a slice of at most eight floats.
    #[inline(always)]
    fn store_part(self, out: &mut [f32], v: Self::V) {
        if out.len() == LANES {
            // SAFETY: the slice holds eight floats.
            return unsafe { self.store(out.as_mut_ptr(), v) };
        }
        let lanes = self.to_array(v);
        let n = out.len();
        out.copy_from_slice(&lanes[..n]);
    }

    /// The sum of the lanes, always in the same order.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let x = self.to_array(v);
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        self.to_array(v).into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// Plain arrays, for every machine.
#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    // Without hardware support `mul_add` is a slow library call; two roundings are the honest portable choice.
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

impl Simd for Portable {
    type V = [f32; LANES];
    type I = [u32; LANES];
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for eight readable floats.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for eight writable floats.
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
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, |x: f32, y: f32| x / y)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let mut out = c;
        for i in 0..LANES {
            out[i] = fused(a[i], b[i], c[i]);
        }
        out
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
    unsafe fn load_words(self, p: *const u8) -> Self::I {
        // SAFETY: the caller vouches for 32 readable bytes.
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
    fn as_floats(self, a: Self::I) -> Self::V {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::V {
        // SAFETY: the caller vouches for eight readable bytes.
        unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_halves(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for sixteen readable bytes.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(crate::encoding::half_to_single)
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        std::array::from_fn(|column| rows.map(|row| row[column]))
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
}

/// AVX2 with fused multiply-add and conversions of half precision.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    pub unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Avx2, Simd};
    use std::arch::x86_64::*;

    macro_rules! binary {
        ($name:ident, $intrinsic:ident) => {
            #[inline(always)]
            fn $name(self, a: __m256, b: __m256) -> __m256 {
                // SAFETY: an `Avx2` exists only where AVX2 and FMA do.
                unsafe { $intrinsic(a, b) }
            }
        };
    }

    impl Simd for Avx2 {
        type V = __m256;
        type I = __m256i;
        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const f32) -> __m256 {
            // SAFETY: the caller vouches for eight readable floats.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32, v: __m256) {
            // SAFETY: the caller vouches for eight writable floats.
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        fn prefetch(self, p: *const f32) {
            // SAFETY: a prefetch reads nothing that a program can see and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        }
        binary!(add, _mm256_add_ps);
        binary!(sub, _mm256_sub_ps);
        binary!(mul, _mm256_mul_ps);
        binary!(div, _mm256_div_ps);
        binary!(max, _mm256_max_ps);
        binary!(min, _mm256_min_ps);
        #[inline(always)]
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: an `Avx2` exists only where FMA does.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn round(self, a: __m256) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }
        #[inline(always)]
        fn pow2(self, n: __m256) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            }
        }
        #[inline(always)]
        unsafe fn load_words(self, p: *const u8) -> __m256i {
            // SAFETY: the caller vouches for 32 readable bytes.
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        fn shift_right(self, a: __m256i, by: u32) -> __m256i {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(by as i32)) }
        }
        #[inline(always)]
        fn shift_left(self, a: __m256i, by: u32) -> __m256i {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(by as i32)) }
        }
        #[inline(always)]
        fn mask(self, a: __m256i, mask: u32) -> __m256i {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_and_si256(a, _mm256_set1_epi32(mask as i32)) }
        }
        #[inline(always)]
        fn or(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_or_si256(a, b) }
        }
        #[inline(always)]
        fn to_floats(self, a: __m256i) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_cvtepi32_ps(a) }
        }
        #[inline(always)]
        fn as_floats(self, a: __m256i) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX2 does.
            unsafe { _mm256_castsi256_ps(a) }
        }
        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> __m256 {
            // SAFETY: the caller vouches for eight readable bytes.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn load_halves(self, p: *const u16) -> __m256 {
            // SAFETY: the caller vouches for sixteen readable bytes; an `Avx2` exists only where F16C does.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        fn transpose(self, r: [__m256; 8]) -> [__m256; 8] {
            // SAFETY: an `Avx2` exists only where AVX does.
            unsafe {
                // Pairs of rows, then fours, then the two halves: each step doubles the run of adjacent rows.
                let pair = |i: usize| (_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
                let (p, q) = ([pair(0), pair(2)], [pair(4), pair(6)]);
                let four = |p: [(__m256, __m256); 2]| {
                    [
                        _mm256_shuffle_ps::<0x44>(p[0].0, p[1].0),
                        _mm256_shuffle_ps::<0xEE>(p[0].0, p[1].0),
                        _mm256_shuffle_ps::<0x44>(p[0].1, p[1].1),
                        _mm256_shuffle_ps::<0xEE>(p[0].1, p[1].1),
                    ]
                };
                let (a, b) = (four(p), four(q));
                [
                    _mm256_permute2f128_ps::<0x20>(a[0], b[0]),
                    _mm256_permute2f128_ps::<0x20>(a[1], b[1]),
                    _mm256_permute2f128_ps::<0x20>(a[2], b[2]),
                    _mm256_permute2f128_ps::<0x20>(a[3], b[3]),
                    _mm256_permute2f128_ps::<0x31>(a[0], b[0]),
                    _mm256_permute2f128_ps::<0x31>(a[1], b[1]),
                    _mm256_permute2f128_ps::<0x31>(a[2], b[2]),
                    _mm256_permute2f128_ps::<0x31>(a[3], b[3]),
                ]
            }
        }
        #[inline(always)]
        fn select_lt(self, a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX does.
            unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
        }
    }
}

/// Whether the AVX2 code runs here. `PELLUCID_ISA=portable` turns it off, to compare or to report a fault.
pub fn has_avx2() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let portable = std::env::var_os("PELLUCID_ISA").is_some_and(|v| v == "portable");
        #[cfg(target_arch = "x86_64")]
        return !portable
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        #[cfg(not(target_arch = "x86_64"))]
        return !portable && false;
    })
}

/// Defines a function that runs `body(simd, args…)` with the best instructions of this machine.
#[macro_export]
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if $crate::simd::has_avx2() {
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx2,fma,f16c")]
                fn with_avx2($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: only called after `has_avx2`.
                    $body(unsafe { $crate::simd::Avx2::new() }, $($arg),*)
                }
                // SAFETY: `has_avx2` has just been checked.
                return unsafe { with_avx2($($arg),*) };
            }
            $body($crate::simd::Portable, $($arg),*)
        }
    };
}
