//! AVX-512: 16 lanes, a whole panel row in one vector.

use super::{Kernel, Lanes};
use std::arch::x86_64::*;

/// 16 lanes in AVX-512.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU must have AVX-512 F, BW, DQ and VL.
    pub unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

macro_rules! binary {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: an `Avx512` exists only where AVX-512 does.
            unsafe { $intrinsic(a, b) }
        }
    };
}

impl Lanes for Avx512 {
    const COUNT: usize = 16;
    type V = __m512;
    type I = __m512i;
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: the caller guarantees 16 readable floats.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: the caller guarantees 16 writable floats.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a prefetch has no visible effect and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    binary!(add, _mm512_add_ps);
    binary!(sub, _mm512_sub_ps);
    binary!(mul, _mm512_mul_ps);
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    binary!(div, _mm512_div_ps);
    binary!(max, _mm512_max_ps);
    binary!(min, _mm512_min_ps);
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    unsafe fn load_words(self, p: *const u8) -> __m512i {
        // SAFETY: the caller guarantees 64 readable bytes.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    fn shift_right(self, a: __m512i, by: u32) -> __m512i {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn shift_left(self, a: __m512i, by: u32) -> __m512i {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn mask(self, a: __m512i, mask: u32) -> __m512i {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi32(mask as i32)) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn to_floats(self, a: __m512i) -> __m512 {
        // SAFETY: an `Avx512` exists only where AVX-512 does.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512 {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // SAFETY: the caller guarantees 32 readable bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16_panel_row(self, p: *const u16) -> [__m512; 2] {
        // SAFETY: the caller guarantees 32 readable bytes.
        unsafe {
            // Element 2i becomes the upper half of word i, element 2i + 1 that of word i + 8; lower
            // halves are zero.
            let places = _mm512_set_epi32(
                15 << 16,
                13 << 16,
                11 << 16,
                9 << 16,
                7 << 16,
                5 << 16,
                3 << 16,
                1 << 16,
                14 << 16,
                12 << 16,
                10 << 16,
                8 << 16,
                6 << 16,
                4 << 16,
                2 << 16,
                0,
            );
            let stored = _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
            let wide = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaa_aaaa, places, stored));
            [wide, wide]
        }
    }
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn with_avx512<K: Kernel>(l: Avx512, kernel: K) {
            kernel.run(l);
        }
        // SAFETY: an `Avx512` exists only where AVX-512 does, and with it AVX2, FMA and F16C.
        unsafe { with_avx512(self, kernel) }
    }
}
