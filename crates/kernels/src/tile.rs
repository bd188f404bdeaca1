//! The one inner loop of every product: a tile of rows times a few panels of sixteen columns.
//!
//! Each output is a single chain of fused multiply-adds over the inner dimension, in order. The tile's height and
//! width only decide how many chains run side by side, so they never change a result. Weights, cached keys and
//! cached values all come in this form, so matrix products and both halves of attention share it.

use crate::simd::{Kernel, LANES, Lanes};

/// Columns in a panel: two vectors of eight lanes or one of sixteen, one cache line of f32.
pub const PANEL: usize = 2 * LANES;
/// Rows of a tile where there are many. With one panel, twelve accumulators, two weight vectors and one input fill AVX2's sixteen registers; with
/// four, twenty-four accumulators, four weight vectors and one input those of AVX-512.
pub const ROWS: usize = 6;

/// The sixteen columns of one step: two vectors of eight lanes, or one of sixteen and another that nobody uses.
pub type Step<L> = [<L as Lanes>::V; 2];

/// Vectors of a step.
pub const fn vectors<L: Lanes>() -> usize {
    PANEL / L::COUNT
}

/// Reads a step.
///
/// # Safety
/// `p` must be valid for reading sixteen floats.
#[inline(always)]
pub unsafe fn load_step<L: Lanes>(l: L, p: *const f32) -> Step<L> {
    // SAFETY: the caller vouches for sixteen floats.
    unsafe {
        let first = l.load(p);
        [first, if vectors::<L>() == 2 { l.load(p.add(L::COUNT)) } else { first }]
    }
}

/// Writes a step.
///
/// # Safety
/// `p` must be valid for writing sixteen floats.
#[inline(always)]
pub unsafe fn store_step<L: Lanes>(l: L, p: *mut f32, step: Step<L>) {
    for (i, &vector) in step.iter().enumerate().take(vectors::<L>()) {
        // SAFETY: the caller vouches for sixteen floats.
        unsafe { l.store(p.add(i * L::COUNT), vector) };
    }
}

/// A matrix seen by a tile: where it starts and how far apart its rows and columns are, in floats.
#[derive(Clone, Copy)]
pub struct Left {
    /// The first element.
    pub start: *const f32,
    /// Distance between rows.
    pub row: usize,
    /// Distance between columns (steps of the inner dimension).
    pub col: usize,
}

/// Panels seen by a tile.
#[derive(Clone, Copy)]
pub struct Right {
    /// The first element of the first panel.
    pub start: *const f32,
    /// Distance between steps of the inner dimension.
    pub step: usize,
    /// Distance between panels.
    pub panel: usize,
}

/// Outputs of a tile: sixteen adjacent floats a panel and row.
#[derive(Clone, Copy)]
pub struct Out {
    /// The first element.
    pub start: *mut f32,
    /// Distance between rows.
    pub row: usize,
    /// Distance between panels.
    pub panel: usize,
}

/// Streams of memory that are asked for side by side: a core reaches the memory's full rate only with several.
pub const STREAMS: usize = 4;

/// Memory that will be wanted soon: every few steps of the inner dimension a tile asks for a line of each stream. It need not exist.
#[derive(Clone, Copy)]
pub struct Ahead {
    /// What is wanted first.
    pub start: *const f32,
    /// Distance between streams, in floats.
    pub stream: usize,
    /// How far to go on in every stream after [`STREAMS`] steps, in floats.
    pub step: usize,
    /// Lines of every stream that are asked for at once.
    pub lines: usize,
}

impl Ahead {
    /// What asks, while `rows` rows meet `inner` steps of [`STREAMS`] panels, for `bytes` bytes of as many others, from `start` on and `stream` bytes
    /// apart.
    pub fn of<L: Lanes>(rows: usize, inner: usize, start: *const u8, stream: usize, bytes: usize) -> Ahead {
        let tiles = rows.div_ceil(tallest::<L>());
        let turns = tiles * STREAMS / panels_at_once::<L>(rows.div_ceil(tiles)) * (inner / STREAMS).max(1);
        let each = bytes.div_ceil(turns);
        let (float, line) = (size_of::<f32>(), PANEL * size_of::<f32>());
        Ahead { start: start.cast(), stream: stream / float, step: each.div_ceil(float), lines: each.div_ceil(line) }
    }
}

/// What all tiles of a product share: its operands from the first row and panel on, and how many steps they have.
struct Operands {
    inner: usize,
    left: Left,
    right: Right,
    out: Out,
    ahead: Ahead,
    go_on: bool,
}

/// `out = left × right`, or `out += left × right` when `go_on`, for `M` rows and `P` panels from some places of the operands on.
///
/// `COL` is the distance between the left columns and `STEP` that between the steps of the panels where they are known beforehand, which saves a
/// third of the instructions, and 0 where they are not. With `ASK` it asks for memory ahead.
///
/// Whoever makes one vouches that all elements which the strides, `M`, `P` and `inner` reach are readable, those of `out` writable.
struct Tile<'a, const M: usize, const P: usize, const ASK: bool, const COL: usize, const STEP: usize> {
    operands: &'a Operands,
    left: *const f32,
    right: *const f32,
    out: *mut f32,
    soon: *const f32,
}

impl<const M: usize, const P: usize, const ASK: bool, const COL: usize, const STEP: usize> Kernel
    for Tile<'_, M, P, ASK, COL, STEP>
{
    #[expect(
        clippy::needless_range_loop,
        reason = "indices over all three arrays keep the loops plain enough to unroll"
    )]
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Tile { operands: &Operands { inner, left, right, out, ahead, go_on }, .. } = self;
        let col = if COL == 0 { left.col } else { COL };
        let step = if STEP == 0 { right.step } else { STEP };
        let (mut a, mut b, mut soon) = (self.left, self.right, self.soon);
        let mut sums = [[[l.splat(0.0); 2]; P]; M];
        // SAFETY: whoever made the tile vouched for every element that the strides reach.
        unsafe {
            if go_on {
                for m in 0..M {
                    for p in 0..P {
                        sums[m][p] = load_step(l, self.out.add(m * out.row + p * out.panel));
                    }
                }
            }
            macro_rules! step {
                () => {
                    let mut weights = [[l.splat(0.0); 2]; P];
                    for p in 0..P {
                        weights[p] = load_step(l, b.add(p * right.panel));
                    }
                    for m in 0..M {
                        let x = l.splat(*a.add(m * left.row));
                        for p in 0..P {
                            for v in 0..vectors::<L>() {
                                sums[m][p][v] = l.fma(x, weights[p][v], sums[m][p][v]);
                            }
                        }
                    }
                    a = a.add(col);
                    b = b.add(step);
                };
            }
            for _ in 0..inner / STREAMS {
                if ASK {
                    for line in 0..ahead.lines {
                        for stream in 0..STREAMS {
                            l.prefetch(soon.wrapping_add(stream * ahead.stream + line * PANEL));
                        }
                    }
                    soon = soon.wrapping_add(ahead.step);
                }
                for _ in 0..STREAMS {
                    step!();
                }
            }
            for _ in 0..inner % STREAMS {
                step!();
            }
            for m in 0..M {
                for p in 0..P {
                    store_step(l, self.out.add(m * out.row + p * out.panel), sums[m][p]);
                }
            }
        }
    }
}

/// Most panels that a tile takes at once.
pub const MOST_PANELS: usize = 4;

/// Rows of the tallest tile: with AVX-512, twelve rows of two panels read the weights once where six of four read them twice.
pub const fn tallest<L: Lanes>() -> usize {
    match vectors::<L>() {
        2 => ROWS,
        _ => 2 * ROWS,
    }
}

/// Panels that a tile of `rows` rows takes at once: as many as registers allow, since each input is read once for all of them, and enough to keep
/// independent chains in flight.
#[inline(always)]
pub const fn panels_at_once<L: Lanes>(rows: usize) -> usize {
    match (rows, vectors::<L>()) {
        (1, _) => MOST_PANELS,
        (2 | 3, 2) => 2,
        (_, 2) => 1,
        (..=ROWS, _) => MOST_PANELS,
        _ => 2,
    }
}

/// `out (+)= left × right` for any number of rows and panels, tile by tile.
///
/// # Safety
/// All elements that the strides, `rows`, `panels` and `inner` reach must be readable, those of `out` writable.
#[expect(clippy::too_many_arguments, reason = "a product has three operands and three sizes")]
#[inline(never)]
pub unsafe fn block<L: Lanes>(
    l: L,
    rows: usize,
    panels: usize,
    inner: usize,
    left: Left,
    right: Right,
    out: Out,
    go_on: bool,
) {
    let ahead = Ahead { start: right.start, stream: 0, step: 0, lines: 0 };
    let operands = Operands { inner, left, right, out, ahead, go_on };
    // SAFETY: the caller vouches for the same.
    unsafe {
        match (left.col, right.step) {
            (1, PANEL) => tiles::<L, false, 1, PANEL>(l, rows, panels, &operands),
            (1, _) => tiles::<L, false, 1, 0>(l, rows, panels, &operands),
            _ => tiles::<L, false, 0, 0>(l, rows, panels, &operands),
        }
    }
}

/// [`block`] for adjacent columns and steps, asking for memory ahead as it goes: `ahead` is walked once, over all tiles.
///
/// # Safety
/// As for [`block`].
#[expect(clippy::too_many_arguments, reason = "a product has three operands and three sizes")]
#[inline(never)]
pub unsafe fn block_asking<L: Lanes>(
    l: L,
    rows: usize,
    panels: usize,
    inner: usize,
    left: Left,
    right: Right,
    out: Out,
    ahead: Ahead,
    go_on: bool,
) {
    debug_assert!(left.col == 1 && right.step == PANEL, "columns and steps are adjacent");
    let operands = Operands { inner, left, right, out, ahead, go_on };
    // SAFETY: the caller vouches for the same.
    unsafe { tiles::<L, true, 1, PANEL>(l, rows, panels, &operands) }
}

/// Calls the tile of a height and width. Which can occur is known when this is compiled, and only those become code.
macro_rules! one_of {
    ($height:ident, $width:ident, $arguments:tt: $($rows:literal)*) => {
        match ($height, $width) {
            $(
                ($rows, 1) if const { $rows <= tallest::<L>() } => one_of!(@ $rows, 1, $arguments),
                ($rows, 2) if const { is_size::<L>($rows, 2) } => one_of!(@ $rows, 2, $arguments),
                ($rows, 4) if const { is_size::<L>($rows, 4) } => one_of!(@ $rows, 4, $arguments),
            )*
            _ => unreachable!("a tile of {} rows and {} panels", $height, $width),
        }
    };
    (@ $rows:literal, $panels:literal, ($l:expr, $operands:expr, $left:expr, $right:expr, $out:expr, $soon:expr)) => {
        $l.call(Tile::<$rows, $panels, ASK, COL, STEP> {
            operands: $operands,
            left: $left,
            right: $right,
            out: $out,
            soon: $soon,
        })
    };
}

/// Whether tiles of so many rows take so many panels.
const fn is_size<L: Lanes>(rows: usize, panels: usize) -> bool {
    rows <= tallest::<L>() && panels_at_once::<L>(rows) == panels
}

/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn tiles<L: Lanes, const ASK: bool, const COL: usize, const STEP: usize>(
    l: L,
    rows: usize,
    panels: usize,
    operands: &Operands,
) {
    let &Operands { inner, left, right, out, ahead, .. } = operands;
    // Tiles as even as they can be: nine rows are five and four, which keeps more chains in flight than six and three.
    let tiles = rows.div_ceil(tallest::<L>());
    let (mut m, mut soon) = (0, ahead.start);
    for done in 0..tiles {
        let height = (rows - m).div_ceil(tiles - done);
        let wide = panels_at_once::<L>(height);
        let mut p = 0;
        while p < panels {
            let width = if panels - p >= wide { wide } else { 1 };
            // SAFETY: `m` and `p` stay within the rows and panels the caller vouches for.
            unsafe {
                let (a, b) = (left.start.add(m * left.row), right.start.add(p * right.panel));
                let to = out.start.add(m * out.row + p * out.panel);
                one_of!(height, width, (l, operands, a, b, to, soon): 1 2 3 4 5 6 7 8 9 10 11 12);
            }
            if ASK {
                soon = soon.wrapping_add(inner / STREAMS * ahead.step);
            }
            p += width;
        }
        m += height;
    }
}
