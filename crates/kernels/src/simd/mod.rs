//! Vectors of f32: traits, and implementations for AVX-512, AVX2 with FMA and a portable fallback,
//! chosen at run time.
//!
//! Kernels are written once, generic over [`Simd`] and `#[inline(always)]`; the
//! [`dispatch!`](crate::dispatch) macro instantiates them inside functions compiled for each
//! instruction set, and picks one at run time. The portable vector is a plain array, which
//! compilers turn into SSE2 on x86-64 and into NEON (with FMA) on aarch64.
//!
//! Sums across lanes use eight lanes on every CPU, so that the order of summation is fixed. Panels
//! of 16 columns and elementwise functions have no operations across lanes, so they use the CPU's
//! full vector width ([`PanelSimd`]). So AVX-512 and AVX2 give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub(crate) use portable::f16_to_f32;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

use std::sync::OnceLock;

/// Lanes of a [`Simd`] vector.
pub const LANES: usize = 8;

/// Vectors of f32 of some width. Arithmetic is lane-wise IEEE; `fma` is fused where the hardware
/// supports it.
pub trait Lanes: Copy {
    /// Number of lanes: 8 or 16.
    const COUNT: usize;
    /// Vector of f32.
    type V: Copy;
    /// Vector of as many 32-bit words.
    type I: Copy;
    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Loads a vector.
    ///
    /// # Safety
    /// `p` must be valid for reading as many floats as there are lanes; no alignment is needed.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Stores a vector.
    ///
    /// # Safety
    /// `p` must be valid for writing as many floats as there are lanes; no alignment is needed.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Prefetches the cache line at `p`, which need not be a valid address.
    fn prefetch(self, p: *const f32);
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
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
    /// Applies a scalar function to each lane.
    #[inline(always)]
    fn map_lanes(self, v: Self::V, f: impl Fn(f32) -> f32) -> Self::V {
        let mut lanes = [0.0; 16];
        // SAFETY: sixteen floats are at least as many as there are lanes.
        unsafe {
            self.store(lanes.as_mut_ptr(), v);
            lanes[..Self::COUNT].iter_mut().for_each(|x| *x = f(*x));
            self.load(lanes.as_ptr())
        }
    }

    /// Loads 32-bit words.
    ///
    /// # Safety
    /// `p` must be valid for reading four bytes a lane; no alignment is needed.
    unsafe fn load_words(self, p: *const u8) -> Self::I;
    /// Shifts words right by `by` bits.
    fn shift_right(self, a: Self::I, by: u32) -> Self::I;
    /// Shifts words left by `by` bits.
    fn shift_left(self, a: Self::I, by: u32) -> Self::I;
    /// Bitwise and of each word with `mask`.
    fn mask(self, a: Self::I, mask: u32) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Converts words, which must be below 2³¹, to floats.
    fn to_floats(self, a: Self::I) -> Self::V;
    /// Loads unsigned bytes and converts them to floats.
    ///
    /// # Safety
    /// `p` must be valid for reading a byte a lane.
    unsafe fn load_u8(self, p: *const u8) -> Self::V;
    /// Loads f16 and converts them to f32.
    ///
    /// # Safety
    /// `p` must be valid for reading two bytes a lane; no alignment is needed.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Loads a panel row of bf16, stored as `half_panels::Bf16` describes, and
    /// widens it to f32. A vector of 16 lanes is in the first element.
    ///
    /// # Safety
    /// `p` must be valid for reading 32 bytes; no alignment is needed.
    unsafe fn load_bf16_panel_row(self, p: *const u16) -> [Self::V; 2];

    /// Runs a kernel in a separate function, compiled with the target features of these lanes.
    fn call<K: Kernel>(self, kernel: K);
}

/// A kernel that is compiled into one function per instruction set and called, not inlined
/// ([`Lanes::call`]).
///
/// All other code here is inlined into its caller, because only there the target features are
/// enabled. A loop that is instantiated for a dozen tile heights or formats must not be: compile
/// time grows faster than linearly with the size of a function.
pub trait Kernel {
    /// Runs the kernel; `#[inline(always)]` in every implementation.
    fn run<L: Lanes>(self, l: L);
}

/// Access to the CPU's widest vectors, for panels.
pub trait PanelSimd: Copy {
    /// Vector type for the 16 columns of a panel: one vector of 16 lanes or two of eight.
    type Panel: Lanes;
    /// Returns these vectors.
    fn panel(self) -> Self::Panel;
}

/// Vectors of exactly eight lanes, with operations across lanes.
pub trait Simd: Lanes + PanelSimd {
    /// Transposes an 8 × 8 matrix.
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES];

    /// Returns the lanes as an array.
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array holds eight floats.
        unsafe { self.store(out.as_mut_ptr(), v) };
        out
    }

    /// Loads up to eight floats; the other lanes are `fill`.
    #[inline(always)]
    fn load_partial(self, x: &[f32], fill: f32) -> Self::V {
        if x.len() == LANES {
            // SAFETY: the slice holds eight floats.
            return unsafe { self.load(x.as_ptr()) };
        }
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        // SAFETY: the array holds eight floats.
        unsafe { self.load(lanes.as_ptr()) }
    }

    /// Stores the first lanes into a slice of at most eight floats.
    #[inline(always)]
    fn store_partial(self, out: &mut [f32], v: Self::V) {
        if out.len() == LANES {
            // SAFETY: the slice holds eight floats.
            return unsafe { self.store(out.as_mut_ptr(), v) };
        }
        let lanes = self.to_array(v);
        let n = out.len();
        out.copy_from_slice(&lanes[..n]);
    }

    /// Sum of the lanes, in a fixed order.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let x = self.to_array(v);
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }

    /// Maximum of the lanes.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let x = self.to_array(v);
        // As a tree, to shorten the dependency chain; without the NaN handling of `f32::max`.
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        larger(larger(larger(x[0], x[4]), larger(x[2], x[6])), larger(larger(x[1], x[5]), larger(x[3], x[7])))
    }
}

/// Instruction sets that kernels are compiled for, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// The baseline of the target architecture.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL), in addition to AVX2.
    Avx512,
}

impl InstructionSet {
    /// All instruction sets, in ascending order.
    pub const ALL: [InstructionSet; 3] = [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];

    /// The name that `PELLUCID_ISA` accepts.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }

    /// Detects the best instruction set of this CPU.
    fn detect() -> InstructionSet {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match (avx2, avx512) {
                (true, true) => return InstructionSet::Avx512,
                (true, false) => return InstructionSet::Avx2,
                (false, _) => {}
            }
        }
        InstructionSet::Portable
    }
}

/// Returns the instruction set in use: the best of this CPU, or a lower one if `PELLUCID_ISA` names
/// it (for comparisons and bug reports).
#[inline]
pub fn instruction_set() -> InstructionSet {
    static FOUND: OnceLock<InstructionSet> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let machine = InstructionSet::detect();
        let wanted = std::env::var("PELLUCID_ISA").unwrap_or_default();
        InstructionSet::ALL.into_iter().find(|set| set.name() == wanted).map_or(machine, |set| set.min(machine))
    })
}

/// Defines a function that runs `body(simd, args…)` with the best instruction set of this CPU.
#[macro_export]
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn with_avx512($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: only called if the CPU has AVX-512.
                    $body(unsafe { $crate::simd::Avx2::<true>::new() }, $($arg),*)
                }
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx2,fma,f16c")]
                fn with_avx2($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: only called if the CPU has AVX2.
                    $body(unsafe { $crate::simd::Avx2::<false>::new() }, $($arg),*)
                }
                match $crate::simd::instruction_set() {
                    // SAFETY: the CPU has this instruction set.
                    $crate::simd::InstructionSet::Avx512 => return unsafe { with_avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::InstructionSet::Avx2 => return unsafe { with_avx2($($arg),*) },
                    $crate::simd::InstructionSet::Portable => {}
                }
            }
            $body($crate::simd::Portable, $($arg),*)
        }
    };
}
