//! Backward pass of single expressions: from the gradient of the result to the gradients of the
//! inputs.

use super::compute::{array, broadcast_to, matmul, owned, take_indices, top_k_indices, view};
use crate::array::Array;
use crate::plan::value_index::Selection;
use crate::plan::value_shape::{self, axis_of};
use crate::plan::{self, Combine, Expr, Fold, Map};
use ndarray::{ArrayD, Axis, IxDyn, Zip};
use pellucid_kernels::activation::activate_backward;

/// Returns the gradient of each input, in its own shape; `None` for inputs without one (indices,
/// conditions).
///
/// `of` are the inputs, `result` is the value of the expression and `upstream` its gradient.
pub(crate) fn differentiate(
    expr: &Expr,
    of: &[Array],
    result: &Array,
    upstream: &Array,
) -> Result<Vec<Option<Array>>, String> {
    use Expr::*;
    let one = |gradient: Array| Ok(vec![Some(gradient)]);
    match expr {
        Map(map, _) => {
            one(Array::new(of[0].shape().to_vec(), map.backward(of[0].values(), result.values(), upstream.values())))
        }
        Combine(combine, ..) => {
            let shape = result.shape();
            let (a, b, g) = (broadcast_to(&of[0], shape), broadcast_to(&of[1], shape), view(upstream));
            let left = Zip::from(&g).and(&a).and(&b).map_collect(|&g, &a, &b| g * combine.derivatives(a, b).0);
            let right = Zip::from(&g).and(&a).and(&b).map_collect(|&g, &a, &b| g * combine.derivatives(a, b).1);
            Ok(vec![Some(reduce_to(left, of[0].shape())), Some(reduce_to(right, of[1].shape()))])
        }
        Where(..) => {
            let condition = broadcast_to(&of[0], result.shape());
            let side = |taken: bool| {
                Zip::from(&view(upstream))
                    .and(&condition)
                    .map_collect(|&g, &c| if (c != 0.0) == taken { g } else { 0.0 })
            };
            Ok(vec![None, Some(reduce_to(side(true), of[1].shape())), Some(reduce_to(side(false), of[2].shape()))])
        }
        MatMul(..) => Ok(product(&of[0], &of[1], upstream)),
        Fold { how, axis, .. } => one(fold(*how, *axis, &of[0], result, upstream)?),
        Softmax { axis, log, .. } => {
            let mut gradient = owned(upstream);
            let axis = Axis(axis_of(of[0].shape(), *axis)?);
            Zip::from(gradient.lanes_mut(axis)).and(view(result).lanes(axis)).for_each(|mut g, y| {
                if *log {
                    let sum: f32 = g.sum();
                    g.zip_mut_with(&y, |g, &y| *g -= y.exp() * sum);
                } else {
                    let along: f32 = g.iter().zip(&y).map(|(g, y)| g * y).sum();
                    g.zip_mut_with(&y, |g, &y| *g = y * (*g - along));
                }
            });
            one(array(gradient))
        }
        TopK { indices: true, .. } => Ok(vec![None]),
        TopK { k, .. } => {
            let length = of[0].shape().last().copied().unwrap_or(1);
            let mut gradient = vec![0.0; of[0].values().len()];
            let lines = of[0].values().chunks_exact(length).zip(gradient.chunks_exact_mut(length));
            for ((line, out), upstream) in lines.zip(upstream.values().chunks_exact(*k)) {
                top_k_indices(line, *k).into_iter().zip(upstream).for_each(|(index, g)| out[index] += g);
            }
            one(Array::new(of[0].shape().to_vec(), gradient))
        }
        Index { picks, .. } => {
            let selection = Selection::new(of[0].shape(), picks)?;
            one(scatter(of[0].shape(), selection.indices(), upstream.values()))
        }
        Put { picks, .. } => {
            let selection = Selection::new(of[0].shape(), picks)?;
            let written = Array::new(selection.shape.clone(), selection.gather(upstream.values()));
            let mut rest = upstream.values().to_vec();
            selection.indices().for_each(|index| rest[index] = 0.0);
            let by = reduce_to(owned(&written), of[1].shape());
            Ok(vec![Some(Array::new(of[0].shape().to_vec(), rest)), Some(by)])
        }
        Take { .. } => {
            let indices = take_indices(&of[0], &of[1])?;
            Ok(vec![Some(scatter(of[0].shape(), indices.into_iter(), upstream.values())), None])
        }
        Reshape { .. } | Row { .. } => one(upstream.reshaped(of[0].shape().to_vec())),
        Permute { axes, .. } => {
            let mut inverse = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(new, &old)| inverse[old] = new);
            one(array(view(upstream).permuted_axes(IxDyn(&inverse)).to_owned()))
        }
        Concat { axis, .. } => Ok(split(of, axis_of(of[0].shape(), *axis)?, upstream)),
        Across { how, .. } => Ok(match how {
            plan::Across::Concat => split(of, 0, upstream),
            plan::Across::Stack => {
                let each = upstream.values().len() / of.len();
                let rows = of.iter().zip(upstream.values().chunks_exact(each.max(1)));
                rows.map(|(row, upstream)| Some(Array::new(row.shape().to_vec(), upstream.to_vec()))).collect()
            }
            plan::Across::Sum => of.iter().map(|_| Some(upstream.clone())).collect(),
            plan::Across::Mean => {
                let share = upstream.values().iter().map(|g| g / of.len() as f32).collect();
                let share = Array::new(upstream.shape().to_vec(), share);
                of.iter().map(|_| Some(share.clone())).collect()
            }
        }),
        Read(_) | Constant(_) | File(_) | WeightGrad { .. } => Ok(Vec::new()),
        Call { .. } => Err("a function of arrays has no gradient; build the metric from recorded operations".into()),
        Through { .. } | Unembed(_) => Err("it is differentiated by running ops, not here".into()),
    }
}

/// The gradient of an array of `shape` from the gradient of its broadcast.
pub(crate) fn sum_to_shape(gradient: &Array, shape: &[usize]) -> Array {
    reduce_to(owned(gradient), shape)
}

/// Sums a gradient over the axes along which an input was broadcast.
fn reduce_to(gradient: ArrayD<f32>, shape: &[usize]) -> Array {
    let mut gradient = gradient;
    while gradient.ndim() > shape.len() {
        gradient = gradient.sum_axis(Axis(0));
    }
    for (axis, &length) in shape.iter().enumerate() {
        if length == 1 && gradient.shape()[axis] != 1 {
            gradient = gradient.sum_axis(Axis(axis)).insert_axis(Axis(axis));
        }
    }
    array(gradient)
}

fn scatter(shape: &[usize], indices: impl Iterator<Item = usize>, upstream: &[f32]) -> Array {
    let mut gradient = vec![0.0; shape.iter().product()];
    indices.zip(upstream).for_each(|(index, g)| gradient[index] += g);
    Array::new(shape.to_vec(), gradient)
}

fn split(parts: &[Array], axis: usize, upstream: &Array) -> Vec<Option<Array>> {
    let (mut from, whole) = (0, view(upstream));
    let cut = parts.iter().map(|part| {
        let to = from + part.shape()[axis];
        let share = whole.slice_axis(Axis(axis), (from..to).into()).to_owned();
        from = to;
        Some(array(share))
    });
    cut.collect()
}

/// Gradients of a matrix product: `dA = dC Bᵀ`, `dB = Aᵀ dC`.
fn product(a: &Array, b: &Array, upstream: &Array) -> Vec<Option<Array>> {
    let matrix = |array: &Array, row: bool| match array.shape() {
        [n] => array.reshaped(if row { vec![1, *n] } else { vec![*n, 1] }),
        _ => array.clone(),
    };
    let (left, right) = (matrix(a, true), matrix(b, false));
    let (m, n) = (left.shape()[left.shape().len() - 2], right.shape()[right.shape().len() - 1]);
    let before: Vec<usize> = match (a.shape().len(), b.shape().len()) {
        (1, 1) => vec![],
        (1, _) => upstream.shape()[..upstream.shape().len() - 1].to_vec(),
        (_, 1) => upstream.shape()[..upstream.shape().len() - 1].to_vec(),
        _ => upstream.shape()[..upstream.shape().len() - 2].to_vec(),
    };
    let upstream = upstream.reshaped([&before[..], &[m, n]].concat());
    let transposed = |array: &Array| {
        let rank = array.shape().len();
        let mut values = view(array);
        values.swap_axes(rank - 2, rank - 1);
        self::array(values.to_owned())
    };
    let joint = |a: &Array, b: &Array| {
        let (x, y) = (a.shape(), b.shape());
        let front = value_shape::broadcast(&x[..x.len() - 2], &y[..y.len() - 2]).unwrap_or_default();
        [&front[..], &[x[x.len() - 2], y[y.len() - 1]]].concat()
    };
    let times = |a: &Array, b: &Array| matmul(a, b, joint(a, b));
    let to_left = reduce_to(owned(&times(&upstream, &transposed(&right))), left.shape());
    let to_right = reduce_to(owned(&times(&transposed(&left), &upstream)), right.shape());
    vec![Some(to_left.reshaped(a.shape().to_vec())), Some(to_right.reshaped(b.shape().to_vec()))]
}

fn fold(how: Fold, axis: Option<i64>, of: &Array, result: &Array, upstream: &Array) -> Result<Array, String> {
    // Without an axis, the flattened array is the only lane.
    let lane = if axis.is_some() { of.clone() } else { of.reshaped(vec![of.values().len()]) };
    let axis = Axis(axis.map_or(Ok(0), |axis| axis_of(of.shape(), axis))?);
    let mut gradient = ArrayD::zeros(IxDyn(lane.shape()));
    let values = view(&lane);
    let lanes = gradient.lanes_mut(axis).into_iter().zip(values.lanes(axis));
    for ((mut out, x), (&y, &g)) in lanes.zip(result.values().iter().zip(upstream.values())) {
        let count = x.len() as f32;
        match how {
            Fold::Sum => out.fill(g),
            Fold::Mean => out.fill(g / count),
            Fold::Max | Fold::Min => {
                // Equal maxima share the gradient, as in torch's `amax` and in JAX.
                let same = x.iter().filter(|&&x| x == y).count() as f32;
                out.iter_mut().zip(&x).filter(|(_, x)| **x == y).for_each(|(out, _)| *out = g / same);
            }
            Fold::ArgMax => {}
            Fold::Norm => out.iter_mut().zip(&x).for_each(|(out, x)| *out = if y == 0.0 { 0.0 } else { g * x / y }),
            Fold::Var => {
                let mean = x.sum() / count;
                out.iter_mut().zip(&x).for_each(|(out, x)| *out = g * 2.0 * (x - mean) / count);
            }
        }
    }
    Ok(array(gradient).reshaped(of.shape().to_vec()))
}

impl Map {
    /// The gradient of the inputs `x`, from the gradient `dy` of the outputs `y`.
    fn backward(self, x: &[f32], y: &[f32], dy: &[f32]) -> Vec<f32> {
        let each = |derivative: fn(f32, f32) -> f32| {
            x.iter().zip(y).zip(dy).map(|((&x, &y), &dy)| dy * derivative(x, y)).collect()
        };
        match self {
            Map::Neg => each(|_, _| -1.0),
            Map::Abs => each(|x, _| if x == 0.0 { 0.0 } else { x.signum() }),
            Map::Exp => each(|_, y| y),
            Map::Log => each(|x, _| 1.0 / x),
            Map::Sqrt => each(|_, y| 0.5 / y),
            Map::Square => each(|x, _| 2.0 * x),
            Map::Sign | Map::Not | Map::Detach => each(|_, _| 0.0),
            Map::Sin => each(|x, _| x.cos()),
            Map::Cos => each(|x, _| -x.sin()),
            Map::Activation(activation) => {
                let mut dx = dy.to_vec();
                activate_backward(activation, x, &mut dx);
                dx
            }
        }
    }
}

impl Combine {
    /// The partial derivatives at `(a, b)`. For `max` and `min` of equal arguments each gets half.
    fn derivatives(self, a: f32, b: f32) -> (f32, f32) {
        let share = |first: bool, second: bool| match (first, second) {
            (true, false) => (1.0, 0.0),
            (false, true) => (0.0, 1.0),
            _ => (0.5, 0.5),
        };
        match self {
            Combine::Add => (1.0, 1.0),
            Combine::Sub => (1.0, -1.0),
            Combine::Mul => (b, a),
            Combine::Div => (1.0 / b, -a / (b * b)),
            Combine::Pow => (b * a.powf(b - 1.0), if a > 0.0 { a.powf(b) * a.ln() } else { 0.0 }),
            Combine::Max => share(a > b, b > a),
            Combine::Min => share(a < b, b < a),
            _ => (0.0, 0.0),
        }
    }
}
