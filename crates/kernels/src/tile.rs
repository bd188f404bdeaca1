//! The inner loop of every product: a tile of rows times a few panels of 16 columns.
//!
//! Each output is a sum of chains of fused multiply-adds: a chain covers [`CHAIN`] indices of the
//! inner dimension, in order, and the chain sums are added in order. The tile's height and width
//! only decide how many chains run in parallel, so they never change a result. Short chains round
//! less than one long chain, and a GPU can compute them in parallel with the same bits. Weights,
//! cached keys and cached values all have this panel layout, so matrix products and both products
//! of attention share this loop.

use crate::simd::{Kernel, LANES, Lanes};

/// Columns per panel: two vectors of eight lanes or one of 16, one cache line of f32.
pub const PANEL: usize = 2 * LANES;
/// Indices of the inner dimension in one chain of fused multiply-adds. A product that is computed
/// in pieces must cut at multiples of it.
pub const CHAIN: usize = 256;
/// Rows per tile if there are many. With one panel, twelve accumulators, two weight vectors and one
/// input fill AVX2's sixteen registers; with four panels, 24 accumulators, four weight vectors and
/// one input fill those of AVX-512.
pub const TILE_ROWS: usize = 6;

/// A panel row: the 16 columns at one index of the inner dimension, as two vectors of eight lanes
/// or one of 16 (the second element is then unused).
pub type PanelRow<L> = [<L as Lanes>::V; 2];

/// Vectors per panel row.
pub const fn vectors_per_row<L: Lanes>() -> usize {
    PANEL / L::COUNT
}

/// Loads a panel row.
///
/// # Safety
/// `p` must be valid for reading 16 floats.
#[inline(always)]
pub unsafe fn load_panel_row<L: Lanes>(l: L, p: *const f32) -> PanelRow<L> {
    // SAFETY: the caller guarantees 16 readable floats.
    unsafe {
        let first = l.load(p);
        [first, if vectors_per_row::<L>() == 2 { l.load(p.add(L::COUNT)) } else { first }]
    }
}

/// Stores a panel row.
///
/// # Safety
/// `p` must be valid for writing 16 floats.
#[inline(always)]
pub unsafe fn store_panel_row<L: Lanes>(l: L, p: *mut f32, row: PanelRow<L>) {
    for (i, &vector) in row.iter().enumerate().take(vectors_per_row::<L>()) {
        // SAFETY: the caller guarantees 16 writable floats.
        unsafe { l.store(p.add(i * L::COUNT), vector) };
    }
}

/// Adds the sums of a chain to the outputs of adjacent panels; those of the first chain replace
/// them.
#[inline(always)]
pub fn add_chain<L: Lanes>(l: L, sums: &[PanelRow<L>], out: &mut [f32], first: bool) {
    for (sum, out) in sums.iter().zip(out.chunks_exact_mut(PANEL)) {
        let mut sum = *sum;
        // SAFETY: the chunk holds 16 floats.
        unsafe {
            if !first {
                let before = load_panel_row(l, out.as_ptr());
                (0..vectors_per_row::<L>()).for_each(|v| sum[v] = l.add(before[v], sum[v]));
            }
            store_panel_row(l, out.as_mut_ptr(), sum);
        }
    }
}

/// Left operand, `[rows, inner]`. Strides are in floats.
#[derive(Clone, Copy)]
pub struct Left {
    /// First element.
    pub start: *const f32,
    /// Floats between rows.
    pub row_stride: usize,
    /// Floats between columns.
    pub col_stride: usize,
}

/// Right operand: panels of `[inner, 16]`. Strides are in floats.
#[derive(Clone, Copy)]
pub struct Right {
    /// First element of the first panel.
    pub start: *const f32,
    /// Floats between panel rows.
    pub row_stride: usize,
    /// Floats between panels.
    pub panel_stride: usize,
}

/// Output, `[rows, panels · 16]`. Strides are in floats.
#[derive(Clone, Copy)]
pub struct Out {
    /// First element.
    pub start: *mut f32,
    /// Floats between rows.
    pub row_stride: usize,
    /// Floats between panels.
    pub panel_stride: usize,
}

/// Memory streams that are prefetched in parallel: one core needs several to reach the full memory
/// bandwidth. Also the unroll factor of the inner loop.
pub const STREAMS: usize = 4;

/// Prefetch schedule of a product: after every [`STREAMS`] inner indices a tile prefetches cache
/// lines of each stream. The addresses need not be valid.
#[derive(Clone, Copy)]
pub struct Prefetch {
    /// Start of the first stream.
    pub start: *const f32,
    /// Floats between streams.
    pub stream_stride: usize,
    /// Floats by which every stream advances per [`STREAMS`] inner indices.
    pub advance: usize,
    /// Cache lines per stream that are prefetched at a time.
    pub lines: usize,
}

impl Prefetch {
    /// Spreads the prefetch of [`STREAMS`] panels over a product of `rows` rows with `inner` rows
    /// of other panels: `bytes` bytes per panel, from `start` on, `stream_stride` bytes apart.
    pub fn for_block<L: Lanes>(
        rows: usize,
        inner: usize,
        start: *const u8,
        stream_stride: usize,
        bytes: usize,
    ) -> Prefetch {
        let tiles = rows.div_ceil(max_tile_rows::<L>());
        let prefetches = tiles * STREAMS / panels_per_tile::<L>(rows.div_ceil(tiles)) * (inner / STREAMS).max(1);
        let each = bytes.div_ceil(prefetches);
        let (float, line) = (size_of::<f32>(), PANEL * size_of::<f32>());
        Prefetch {
            start: start.cast(),
            stream_stride: stream_stride / float,
            advance: each.div_ceil(float),
            lines: each.div_ceil(line),
        }
    }
}

/// A tile prefetches nothing.
pub const NO_PREFETCH: usize = 0;
/// A tile of at most [`TILE_ROWS`] rows prefetches one line per stream and round. A loop over the
/// lines would cost it a fifth more instructions.
pub const ONE_LINE: usize = 1;
/// A tile prefetches [`Prefetch::lines`] lines per stream and round.
pub const SOME_LINES: usize = 2;

/// Operands of a product, shared by all of its tiles.
struct Operands {
    inner: usize,
    left: Left,
    right: Right,
    out: Out,
    prefetch: Prefetch,
    accumulate: bool,
}

/// Computes `out = left × right`, or `out += left × right` if `accumulate`, for `M` rows and `P`
/// panels that start at the given pointers.
///
/// `COL_STRIDE` (of `left`) and `ROW_STRIDE` (of `right`) are the strides if known at compile time,
/// which saves a third of the instructions, else 0. `PREFETCH` says what a tile prefetches.
///
/// The code that constructs a tile guarantees that all elements within reach of the strides, `M`,
/// `P` and `inner` are readable, and those of `out` writable.
struct Tile<'a, const M: usize, const P: usize, const PREFETCH: usize, const COL_STRIDE: usize, const ROW_STRIDE: usize>
{
    operands: &'a Operands,
    left: *const f32,
    right: *const f32,
    out: *mut f32,
    next: *const f32,
}

impl<const M: usize, const P: usize, const PREFETCH: usize, const COL_STRIDE: usize, const ROW_STRIDE: usize> Kernel
    for Tile<'_, M, P, PREFETCH, COL_STRIDE, ROW_STRIDE>
{
    #[expect(
        clippy::needless_range_loop,
        reason = "indices over all three arrays keep the loops plain enough to unroll"
    )]
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Tile { operands: &Operands { inner, left, right, out, prefetch, accumulate }, .. } = self;
        let col_stride = if COL_STRIDE == 0 { left.col_stride } else { COL_STRIDE };
        let row_stride = if ROW_STRIDE == 0 { right.row_stride } else { ROW_STRIDE };
        let (mut a, mut b, mut next) = (self.left, self.right, self.next);
        let (mut rest, mut add) = (inner, accumulate);
        // One chain per round; its sums are added to the output.
        loop {
            let steps = rest.min(CHAIN);
            let mut sums = [[[l.splat(0.0); 2]; P]; M];
            macro_rules! inner_step {
                () => {
                    let mut weights = [[l.splat(0.0); 2]; P];
                    for p in 0..P {
                        weights[p] = load_panel_row(l, b.add(p * right.panel_stride));
                    }
                    for m in 0..M {
                        let x = l.splat(*a.add(m * left.row_stride));
                        for p in 0..P {
                            for v in 0..vectors_per_row::<L>() {
                                sums[m][p][v] = l.fma(x, weights[p][v], sums[m][p][v]);
                            }
                        }
                    }
                    a = a.add(col_stride);
                    b = b.add(row_stride);
                };
            }
            // SAFETY: guaranteed where the tile was constructed, see `Tile`.
            unsafe {
                for _ in 0..steps / STREAMS {
                    if PREFETCH != NO_PREFETCH {
                        let lines = if PREFETCH == ONE_LINE { 1 } else { prefetch.lines };
                        for line in 0..lines {
                            for stream in 0..STREAMS {
                                l.prefetch(next.wrapping_add(stream * prefetch.stream_stride + line * PANEL));
                            }
                        }
                        next = next.wrapping_add(prefetch.advance);
                    }
                    for _ in 0..STREAMS {
                        inner_step!();
                    }
                }
                for _ in 0..steps % STREAMS {
                    inner_step!();
                }
                for m in 0..M {
                    for p in 0..P {
                        let start = self.out.add(m * out.row_stride + p * out.panel_stride);
                        if add {
                            let before = load_panel_row(l, start);
                            for v in 0..vectors_per_row::<L>() {
                                sums[m][p][v] = l.add(before[v], sums[m][p][v]);
                            }
                        }
                        store_panel_row(l, start, sums[m][p]);
                    }
                }
            }
            rest -= steps;
            if rest == 0 {
                break;
            }
            add = true;
        }
    }
}

/// Maximum number of panels per tile.
pub const MAX_PANELS: usize = 4;

/// Maximum number of rows per tile. With AVX-512, twelve rows of two panels read the weights once;
/// six rows of four panels would read them twice.
pub const fn max_tile_rows<L: Lanes>() -> usize {
    match vectors_per_row::<L>() {
        2 => TILE_ROWS,
        _ => 2 * TILE_ROWS,
    }
}

/// Panels per tile of `rows` rows: as many as the registers allow, because each input is loaded
/// once for all of them, and enough to keep independent FMA chains in flight.
#[inline(always)]
pub const fn panels_per_tile<L: Lanes>(rows: usize) -> usize {
    match (rows, vectors_per_row::<L>()) {
        (1, _) => MAX_PANELS,
        (2 | 3, 2) => 2,
        (_, 2) => 1,
        (..=TILE_ROWS, _) => MAX_PANELS,
        _ => 2,
    }
}

/// Computes `out = left × right`, or `out += left × right` if `accumulate`, tile by tile.
///
/// # Safety
/// All elements within reach of the strides, `rows`, `panels` and `inner` must be readable, and
/// those of `out` writable.
#[expect(clippy::too_many_arguments, reason = "a product has three operands and three sizes")]
#[inline(never)]
pub unsafe fn multiply_block<L: Lanes>(
    l: L,
    rows: usize,
    panels: usize,
    inner: usize,
    left: Left,
    right: Right,
    out: Out,
    accumulate: bool,
) {
    let prefetch = Prefetch { start: right.start, stream_stride: 0, advance: 0, lines: 0 };
    let operands = Operands { inner, left, right, out, prefetch, accumulate };
    // SAFETY: the caller guarantees the same.
    unsafe {
        match (left.col_stride, right.row_stride) {
            (1, PANEL) => multiply_tiles::<L, NO_PREFETCH, 1, PANEL>(l, rows, panels, &operands),
            (1, _) => multiply_tiles::<L, NO_PREFETCH, 1, 0>(l, rows, panels, &operands),
            _ => multiply_tiles::<L, NO_PREFETCH, 0, 0>(l, rows, panels, &operands),
        }
    }
}

/// Like [`multiply_block`] with adjacent columns and panel rows, prefetching along the way:
/// `prefetch` covers all tiles together.
///
/// # Safety
/// As for [`multiply_block`].
#[expect(clippy::too_many_arguments, reason = "a product has three operands and three sizes")]
#[inline(never)]
pub unsafe fn multiply_block_prefetching<L: Lanes, const PREFETCH: usize>(
    l: L,
    rows: usize,
    panels: usize,
    inner: usize,
    left: Left,
    right: Right,
    out: Out,
    prefetch: Prefetch,
    accumulate: bool,
) {
    debug_assert!(left.col_stride == 1 && right.row_stride == PANEL, "columns and panel rows are adjacent");
    let operands = Operands { inner, left, right, out, prefetch, accumulate };
    // SAFETY: the caller guarantees the same.
    unsafe { multiply_tiles::<L, PREFETCH, 1, PANEL>(l, rows, panels, &operands) }
}

/// Calls the tile of a given height and width. The sizes that can occur are known at compile time;
/// only these are instantiated.
macro_rules! call_tile {
    ($height:ident, $width:ident, $arguments:tt: $($rows:literal)*) => {
        match ($height, $width) {
            $(
                ($rows, 1) if const { is_tile_height::<L, PREFETCH>($rows) } => call_tile!(@ $rows, 1, $arguments),
                ($rows, 2) if const { is_tile_size::<L, PREFETCH>($rows, 2) } => call_tile!(@ $rows, 2, $arguments),
                ($rows, 4) if const { is_tile_size::<L, PREFETCH>($rows, 4) } => call_tile!(@ $rows, 4, $arguments),
            )*
            _ => unreachable!("a tile of {} rows and {} panels", $height, $width),
        }
    };
    (@ $rows:literal, $panels:literal, ($l:expr, $operands:expr, $left:expr, $right:expr, $out:expr, $next:expr)) => {
        $l.call(Tile::<$rows, $panels, PREFETCH, COL_STRIDE, ROW_STRIDE> {
            operands: $operands,
            left: $left,
            right: $right,
            out: $out,
            next: $next,
        })
    };
}

/// Whether there are tiles of `rows` rows.
const fn is_tile_height<L: Lanes, const PREFETCH: usize>(rows: usize) -> bool {
    rows <= if PREFETCH == ONE_LINE { TILE_ROWS } else { max_tile_rows::<L>() }
}

/// Whether tiles of `rows` rows take `panels` panels.
const fn is_tile_size<L: Lanes, const PREFETCH: usize>(rows: usize, panels: usize) -> bool {
    is_tile_height::<L, PREFETCH>(rows) && panels_per_tile::<L>(rows) == panels
}

/// # Safety
/// As for [`multiply_block`].
#[inline(always)]
unsafe fn multiply_tiles<L: Lanes, const PREFETCH: usize, const COL_STRIDE: usize, const ROW_STRIDE: usize>(
    l: L,
    rows: usize,
    panels: usize,
    operands: &Operands,
) {
    let &Operands { inner, left, right, out, prefetch, .. } = operands;
    // Tiles of equal height: nine rows are five and four, which keeps more FMA chains in flight
    // than six and three.
    let tiles = rows.div_ceil(max_tile_rows::<L>());
    let (mut m, mut next) = (0, prefetch.start);
    for done in 0..tiles {
        let height = (rows - m).div_ceil(tiles - done);
        let wide = panels_per_tile::<L>(height);
        let mut p = 0;
        while p < panels {
            let width = if panels - p >= wide { wide } else { 1 };
            // SAFETY: `m` and `p` stay within the rows and panels that the caller guarantees.
            unsafe {
                let (a, b) = (left.start.add(m * left.row_stride), right.start.add(p * right.panel_stride));
                let to = out.start.add(m * out.row_stride + p * out.panel_stride);
                call_tile!(height, width, (l, operands, a, b, to, next): 1 2 3 4 5 6 7 8 9 10 11 12);
            }
            if PREFETCH != NO_PREFETCH {
                next = next.wrapping_add(inner / STREAMS * prefetch.advance);
            }
            p += width;
        }
        m += height;
    }
}
