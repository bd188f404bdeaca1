//! Evaluates expressions on whole arrays.

use crate::array::Array;
use crate::plan::value_index::Selection;
use crate::plan::value_shape::{self, axis_of, shape};
use crate::plan::{self, Combine, Expr, Fold, Map};
use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, Zip};
use pellucid_kernels::activation::activate;
use pellucid_kernels::softmax::softmax;

/// Evaluates an expression on its inputs. Incompatible shapes are an error.
pub(crate) fn compute(expr: &Expr, of: &[Array]) -> Result<Array, String> {
    use Expr::*;
    let shapes: Vec<&[usize]> = of.iter().map(Array::shape).collect();
    let shape = shape(expr, &shapes)?;
    Ok(match expr {
        Map(map, _) => Array::new(shape, map.of(of[0].values())),
        Combine(combine, ..) => zip(&shape, &of[0], &of[1], |a, b| combine.of(a, b)),
        Where(..) => {
            let chosen = zip(&shape, &of[0], &of[1], |c, a| if c != 0.0 { a } else { f32::NAN });
            // Test the condition, not the selected values: those may be NaN themselves.
            let condition = broadcast_to(&of[0], &shape);
            let mut values = owned(&chosen);
            Zip::from(&mut values).and(&condition).and(&broadcast_to(&of[2], &shape)).for_each(|x, &c, &b| {
                if c == 0.0 {
                    *x = b
                }
            });
            array(values)
        }
        MatMul(..) => matmul(&of[0], &of[1], shape),
        Fold { how, axis: None, .. } => {
            Array::new(shape, vec![how.of(of[0].values().iter().copied())]).with_integer(how.gives_indices())
        }
        Fold { how, axis: Some(axis), .. } => {
            let axis = Axis(axis_of(shapes[0], *axis)?);
            let folded = view(&of[0]).map_axis(axis, |lane| how.of(lane.iter().copied()));
            Array::new(shape, folded.iter().copied().collect()).with_integer(how.gives_indices())
        }
        Softmax { axis, log, .. } => {
            let mut values = owned(&of[0]);
            for mut lane in values.lanes_mut(Axis(axis_of(shapes[0], *axis)?)) {
                let mut line = lane.to_vec();
                if *log {
                    log_softmax(&mut line)
                } else {
                    softmax(&mut line, None)
                }
                lane.iter_mut().zip(line).for_each(|(x, y)| *x = y);
            }
            array(values)
        }
        TopK { k, indices, .. } => {
            let lines = of[0].values().chunks_exact(shapes[0].last().copied().unwrap_or(1));
            let values = lines.flat_map(|line| {
                top_k_indices(line, *k).into_iter().map(move |index| if *indices { index as f32 } else { line[index] })
            });
            Array::new(shape, values.collect()).with_integer(*indices)
        }
        Index { picks, .. } => {
            Array::new(shape, Selection::new(shapes[0], picks)?.gather(of[0].values())).with_integer(of[0].is_integer())
        }
        Put { picks, .. } => {
            let selection = Selection::new(shapes[0], picks)?;
            let mut values = of[0].values().to_vec();
            let by = broadcast_to(&of[1], &selection.shape);
            selection.indices().zip(by.iter()).for_each(|(index, &x)| values[index] = x);
            Array::new(shape, values)
        }
        Take { .. } => {
            let indices = take_indices(&of[0], &of[1])?;
            Array::new(shape, indices.into_iter().map(|index| of[0].values()[index]).collect())
        }
        Reshape { .. } | Row { .. } => of[0].reshaped(shape),
        Permute { axes, .. } => array(view(&of[0]).permuted_axes(IxDyn(axes)).to_owned()),
        Concat { axis, .. } => concat(of, axis_of(shapes[0], *axis)?),
        Across { how, .. } => match how {
            plan::Across::Concat => concat(of, 0),
            plan::Across::Stack => Array::new(shape, of.iter().flat_map(|row| row.values().iter().copied()).collect()),
            plan::Across::Sum | plan::Across::Mean => {
                let by = if *how == plan::Across::Mean { 1.0 / of.len() as f32 } else { 1.0 };
                let mut sum = vec![0.0; shape.iter().product()];
                of.iter().for_each(|row| sum.iter_mut().zip(row.values()).for_each(|(sum, x)| *sum += x));
                sum.iter_mut().for_each(|x| *x *= by);
                Array::new(shape, sum)
            }
        },
        Read(_) | Constant(_) | File(_) | WeightGrad { .. } | Through { .. } | Unembed(_) | Call { .. } => {
            return Err("it is not computed from other values".into());
        }
    })
}

/// An array as an ndarray view.
pub(super) fn view(array: &Array) -> ArrayViewD<'_, f32> {
    ArrayViewD::from_shape(IxDyn(array.shape()), array.values())
        .expect("an array has as many elements as its shape says")
}

/// Broadcasts an array to a shape, which must be compatible.
pub(super) fn broadcast_to<'a>(array: &'a Array, shape: &[usize]) -> ndarray::CowArray<'a, f32, IxDyn> {
    let view = view(array);
    match view.broadcast(IxDyn(shape)) {
        Some(wide) if wide.shape() == view.shape() => view.into(),
        Some(wide) => wide.to_owned().into(),
        None => unreachable!("shapes were checked: {:?} to {shape:?}", array.shape()),
    }
}

pub(super) fn owned(array: &Array) -> ArrayD<f32> {
    view(array).to_owned()
}

pub(super) fn array(values: ArrayD<f32>) -> Array {
    let shape = values.shape().to_vec();
    let values = values.as_standard_layout().into_owned();
    let (values, _) = values.into_raw_vec_and_offset();
    Array::new(shape, values)
}

fn zip(shape: &[usize], a: &Array, b: &Array, f: impl Fn(f32, f32) -> f32) -> Array {
    // Fast paths without broadcasting: equal shapes, or a scalar on the right.
    if a.shape() == b.shape() && a.shape() == shape {
        return Array::new(shape.to_vec(), a.values().iter().zip(b.values()).map(|(&a, &b)| f(a, b)).collect());
    }
    if let ([b], true) = (b.values(), a.shape() == shape) {
        return Array::new(shape.to_vec(), a.values().iter().map(|&a| f(a, *b)).collect());
    }
    array(Zip::from(&broadcast_to(a, shape)).and(&broadcast_to(b, shape)).map_collect(|&a, &b| f(a, b)))
}

/// Matrix product over the last two axes, as `np.matmul`: a vector is a row on the left and a
/// column on the right.
pub(super) fn matmul(a: &Array, b: &Array, shape: Vec<usize>) -> Array {
    let (left, right) = (as_matrices(a, true), as_matrices(b, false));
    let [.., m, k] = left.shape()[..] else { unreachable!("made of two axes at least") };
    let [.., n] = right.shape()[..] else { unreachable!("made of two axes at least") };
    let before = broadcast_front(left.shape(), right.shape());
    let (left, right) = (front(left, &before, m, k), front(right, &before, k, n));
    let mut out = Vec::with_capacity(shape.iter().product());
    for (left, right) in left.outer_iter().zip(right.outer_iter()) {
        out.extend(left.dot(&right));
    }
    Array::new(shape, out)
}

fn as_matrices(array: &Array, row: bool) -> ArrayD<f32> {
    let values = owned(array);
    match values.ndim() {
        1 => values.insert_axis(Axis(if row { 0 } else { 1 })),
        _ => values,
    }
}

fn broadcast_front(a: &[usize], b: &[usize]) -> Vec<usize> {
    value_shape::broadcast(&a[..a.len() - 2], &b[..b.len() - 2]).unwrap_or_default()
}

/// Broadcasts the leading axes and flattens them: `[count, m, n]`.
fn front(array: ArrayD<f32>, before: &[usize], m: usize, n: usize) -> ndarray::Array3<f32> {
    let wide = array.broadcast(IxDyn(&[before, &[m, n]].concat())).map(|wide| wide.to_owned()).unwrap_or(array);
    let count = before.iter().product();
    wide.to_shape((count, m, n)).expect("same number of elements").to_owned()
}

fn concat(parts: &[Array], axis: usize) -> Array {
    let views: Vec<ArrayViewD<f32>> = parts.iter().map(view).collect();
    array(ndarray::concatenate(Axis(axis), &views).expect("shapes were checked"))
}

/// Flat indices of the elements that `take` selects along the last axis.
pub(super) fn take_indices(of: &Array, indices: &Array) -> Result<Vec<usize>, String> {
    let length = of.shape().last().copied().unwrap_or(1);
    let lines = of.values().len() / length.max(1);
    let each = indices.values().len() / lines.max(1);
    indices
        .values()
        .iter()
        .enumerate()
        .map(|(nth, &index)| {
            let whole = index >= 0.0 && index.fract() == 0.0 && (index as usize) < length;
            if !whole {
                return Err(format!("index {index} is out of range for an axis of {length}"));
            }
            Ok(nth / each.max(1) * length + index as usize)
        })
        .collect()
}

/// Indices of the `k` largest elements, largest first, lower index first among equals. NaN counts
/// as largest, so that it shows.
pub(super) fn top_k_indices(line: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..line.len()).collect();
    let falling = |a: &usize, b: &usize| line[*b].total_cmp(&line[*a]).then(a.cmp(b));
    if k < order.len() {
        order.select_nth_unstable_by(k, falling);
        order.truncate(k);
    }
    order.sort_unstable_by(falling);
    order
}

pub(super) fn log_softmax(line: &mut [f32]) {
    let top = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = line.iter().map(|x| ((x - top) as f64).exp()).sum();
    let log = top + sum.ln() as f32;
    line.iter_mut().for_each(|x| *x -= log);
}

impl Map {
    /// Applies the function to each element.
    fn of(self, values: &[f32]) -> Vec<f32> {
        let each = |f: fn(f32) -> f32| values.iter().map(|&x| f(x)).collect();
        match self {
            Map::Detach => values.to_vec(),
            Map::Neg => each(|x| -x),
            Map::Abs => each(f32::abs),
            Map::Exp => each(f32::exp),
            Map::Log => each(f32::ln),
            Map::Sqrt => each(f32::sqrt),
            Map::Square => each(|x| x * x),
            Map::Sign => each(|x| if x == 0.0 || x.is_nan() { x } else { x.signum() }),
            Map::Not => each(|x| if x == 0.0 { 1.0 } else { 0.0 }),
            Map::Sin => each(f32::sin),
            Map::Cos => each(f32::cos),
            Map::Activation(activation) => {
                let mut values = values.to_vec();
                activate(activation, &mut values);
                values
            }
        }
    }
}

impl Combine {
    /// Applies the function to two elements.
    pub(crate) fn of(self, a: f32, b: f32) -> f32 {
        let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
        match self {
            Combine::Add => a + b,
            Combine::Sub => a - b,
            Combine::Mul => a * b,
            Combine::Div => a / b,
            Combine::Pow => a.powf(b),
            Combine::Max => a.max(b),
            Combine::Min => a.min(b),
            Combine::Less => truth(a < b),
            Combine::LessEqual => truth(a <= b),
            Combine::Greater => truth(a > b),
            Combine::GreaterEqual => truth(a >= b),
            Combine::Equal => truth(a == b),
            Combine::NotEqual => truth(a != b),
        }
    }
}

impl Fold {
    fn gives_indices(self) -> bool {
        self == Fold::ArgMax
    }

    /// Reduces a sequence; sums are accumulated in f64.
    fn of(self, values: impl Iterator<Item = f32> + Clone) -> f32 {
        let count = || values.clone().count() as f64;
        let sum = || values.clone().map(f64::from).sum::<f64>();
        match self {
            Fold::Sum => sum() as f32,
            Fold::Mean => (sum() / count()) as f32,
            Fold::Max => values.fold(f32::NEG_INFINITY, f32::max),
            Fold::Min => values.fold(f32::INFINITY, f32::min),
            Fold::ArgMax => {
                let best = values.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
                best.map_or(0.0, |(index, _)| index as f32)
            }
            Fold::Norm => values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt() as f32,
            Fold::Var => {
                let mean = sum() / count();
                (values.clone().map(|x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count()) as f32
            }
        }
    }
}
