//! Vectors of f32: traits, and implementations for AVX-512, for AVX2 with FMA and for every machine, chosen at run time.
//!
//! Kernels are written once, generic over [`Simd`] and `#[inline(always)]`; the [`dispatch!`](crate::dispatch) macro instantiates them
//! inside functions compiled for each set of instructions, and picks at run time. The portable lanes are a plain array,
//! which compilers turn into SSE2 on x86-64 and into NEON (with fused multiply-add) on aarch64.
//!
//! What is summed across lanes takes eight of them on every machine, so that it is summed in one order. What works on panels of sixteen columns or
//! on single numbers, where no lane ever meets another, takes as many as the machine has ([`Panels`]). So AVX-512 and AVX2 give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub(crate) use portable::half_to_single;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

use std::sync::OnceLock;

/// Lanes of a vector of [`Simd`].
pub const LANES: usize = 8;

/// Vectors of some number of f32. Implementations promise lane-wise IEEE arithmetic; `fma` is fused where the hardware fuses.
pub trait Lanes: Copy {
    /// How many lanes a vector has: eight or sixteen.
    const COUNT: usize;
    /// The vector type.
    type V: Copy;
    /// As many words of 32 bits.
    type I: Copy;
    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Reads a vector.
    ///
    /// # Safety
    /// `p` must be valid for reading as many floats as there are lanes; no alignment is needed.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Writes a vector.
    ///
    /// # Safety
    /// `p` must be valid for writing as many floats as there are lanes; no alignment is needed.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Asks for the cache line at `p`, which need not exist.
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
    /// A function of each lane that has no vector code.
    #[inline(always)]
    fn each(self, v: Self::V, f: impl Fn(f32) -> f32) -> Self::V {
        let mut lanes = [0.0; 16];
        // SAFETY: sixteen floats are at least as many as there are lanes.
        unsafe {
            self.store(lanes.as_mut_ptr(), v);
            lanes[..Self::COUNT].iter_mut().for_each(|x| *x = f(*x));
            self.load(lanes.as_ptr())
        }
    }

    /// Reads words.
    ///
    /// # Safety
    /// `p` must be valid for reading four bytes a lane; no alignment is needed.
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
    /// Reads unsigned bytes as numbers.
    ///
    /// # Safety
    /// `p` must be valid for reading a byte a lane.
    unsafe fn load_bytes(self, p: *const u8) -> Self::V;
    /// Reads numbers of half precision.
    ///
    /// # Safety
    /// `p` must be valid for reading two bytes a lane; no alignment is needed.
    unsafe fn load_halves(self, p: *const u16) -> Self::V;
    /// Reads sixteen numbers that are the upper halves of f32, as vectors of adjacent columns: the first eight columns are the low halves of
    /// words, the others the high ones. One vector of sixteen lanes is in the first place.
    ///
    /// # Safety
    /// `p` must be valid for reading 32 bytes; no alignment is needed.
    unsafe fn load_upper_halves(self, p: *const u16) -> [Self::V; 2];

    /// Runs a kernel in a function of its own, compiled for the instructions of these lanes.
    fn call<K: Kernel>(self, kernel: K);
}

/// Work that becomes one function for each instruction set, which all who need it call ([`Lanes::call`]).
///
/// Everything else here is inlined into its caller, because only there are the instructions of the lanes enabled. A loop that is written out for
/// a dozen heights or formats must not be: the time that a compiler takes grows faster than the size of a function.
pub trait Kernel {
    /// Does the work; `#[inline(always)]` in every implementation.
    fn run<L: Lanes>(self, l: L);
}

/// Who has wider vectors for panels.
pub trait Panels: Copy {
    /// Vectors for the sixteen columns of a panel: one of sixteen lanes or two of eight.
    type Panel: Lanes;
    /// The implementation of these vectors.
    fn panel(self) -> Self::Panel;
}

/// Eight lanes, and what needs them to be eight: sums across them, corners.
pub trait Simd: Lanes + Panels {
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
        let x = self.to_array(v);
        // In pairs, which do not wait for each other; without the care for NaN that `f32::max` takes.
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        larger(larger(larger(x[0], x[4]), larger(x[2], x[6])), larger(larger(x[1], x[5]), larger(x[3], x[7])))
    }
}

/// The instructions that kernels are compiled for, from plain to powerful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// What every processor of this kind has.
    Portable,
    /// AVX2 with fused multiply-add and conversions of half precision.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL) besides.
    Avx512,
}

impl InstructionSet {
    /// All of them, from plain to powerful.
    pub const ALL: [InstructionSet; 3] = [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];

    /// The name, as `PELLUCID_ISA` takes it.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }

    /// The best that this machine has.
    fn of_machine() -> InstructionSet {
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

/// The instructions that run here: the best that there are, or less where `PELLUCID_ISA` names a plainer set, to compare or to report a
/// fault.
#[inline]
pub fn instruction_set() -> InstructionSet {
    static FOUND: OnceLock<InstructionSet> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let machine = InstructionSet::of_machine();
        let wanted = std::env::var("PELLUCID_ISA").unwrap_or_default();
        InstructionSet::ALL.into_iter().find(|set| set.name() == wanted).map_or(machine, |set| set.min(machine))
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
            {
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn with_avx512($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: only called where there is AVX-512.
                    $body(unsafe { $crate::simd::Avx2::<true>::new() }, $($arg),*)
                }
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx2,fma,f16c")]
                fn with_avx2($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: only called where there is AVX2.
                    $body(unsafe { $crate::simd::Avx2::<false>::new() }, $($arg),*)
                }
                match $crate::simd::instruction_set() {
                    // SAFETY: the machine has these instructions.
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
