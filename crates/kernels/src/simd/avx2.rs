//! AVX2 with FMA and F16C.

use super::{Avx512, Kernel, LANES, Lanes, PanelSimd, Simd};
use std::arch::x86_64::*;

/// Eight lanes in AVX2. `WIDE` if AVX-512 is also available, for panels.
#[derive(Clone, Copy)]
pub struct Avx2<const WIDE: bool>(());

impl<const WIDE: bool> Avx2<WIDE> {
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C, and if `WIDE`, AVX-512 (F, BW, DQ and VL).
    pub unsafe fn new() -> Self {
        Avx2(())
    }
}

impl PanelSimd for Avx2<false> {
    type Panel = Self;
    #[inline(always)]
    fn panel(self) -> Self {
        self
    }
}

impl PanelSimd for Avx2<true> {
    type Panel = Avx512;
    #[inline(always)]
    fn panel(self) -> Avx512 {
        // SAFETY: the caller of `new` guaranteed AVX-512.
        unsafe { Avx512::new() }
    }
}

macro_rules! binary {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: an `Avx2` exists only where AVX2 and FMA do.
            unsafe { $intrinsic(a, b) }
        }
    };
}

impl<const WIDE: bool> Lanes for Avx2<WIDE> {
    const COUNT: usize = LANES;
    type V = __m256;
    type I = __m256i;
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: an `Avx2` exists only where AVX2 does.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: the caller guarantees eight readable floats.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: the caller guarantees eight writable floats.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a prefetch has no visible effect and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    binary!(add, _mm256_add_ps);
    binary!(sub, _mm256_sub_ps);
    binary!(mul, _mm256_mul_ps);
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: an `Avx2` exists only where FMA does.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    binary!(div, _mm256_div_ps);
    binary!(max, _mm256_max_ps);
    binary!(min, _mm256_min_ps);
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
    fn select_lt(self, a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        // SAFETY: an `Avx2` exists only where AVX does.
        unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    unsafe fn load_words(self, p: *const u8) -> __m256i {
        // SAFETY: the caller guarantees 32 readable bytes.
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
    unsafe fn load_u8(self, p: *const u8) -> __m256 {
        // SAFETY: the caller guarantees eight readable bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        // SAFETY: the caller guarantees 16 readable bytes; an `Avx2` exists only where F16C does.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16_panel_row(self, p: *const u16) -> [__m256; 2] {
        // SAFETY: the caller guarantees 32 readable bytes; an `Avx2` exists only where AVX2 does.
        unsafe {
            let words = self.load_words(p.cast());
            [_mm256_castsi256_ps(self.shift_left(words, 16)), _mm256_castsi256_ps(self.mask(words, 0xffff_0000))]
        }
    }
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_avx2<const WIDE: bool, K: Kernel>(l: Avx2<WIDE>, kernel: K) {
            kernel.run(l);
        }
        // SAFETY: an `Avx2` exists only where AVX2, FMA and F16C do.
        unsafe { with_avx2(self, kernel) }
    }
}

impl<const WIDE: bool> Simd for Avx2<WIDE>
where
    Avx2<WIDE>: PanelSimd,
{
    #[inline(always)]
    fn transpose(self, r: [__m256; 8]) -> [__m256; 8] {
        // SAFETY: an `Avx2` exists only where AVX does.
        unsafe {
            // Pairs of rows, then fours, then the two halves: each step doubles the run of adjacent
            // rows.
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
}
