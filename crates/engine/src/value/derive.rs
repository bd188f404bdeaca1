//! Derivatives of expressions: what a gradient of the result means for each input.

use super::compute::{array, largest, matmul, owned, spread, taken, view};
use crate::array::Array;
use crate::plan::value_index::Selection;
use crate::plan::value_shape::{self, axis_of};
use crate::plan::{self, Combine, Expr, Fold, Map};
use ndarray::{ArrayD, Axis, IxDyn, Zip};
use pellucid_kernels::activation::activate_backward;

/// For each input its gradient, in its own shape; `None` where no gradient flows (places, conditions).
///
/// `of` are the inputs, `made` the result and `back` the result's gradient.
pub(crate) fn derive(expr: &Expr, of: &[Array], made: &Array, back: &Array) -> Result<Vec<Option<Array>>, String> {
    use Expr::*;
    let one = |gradient: Array| Ok(vec![Some(gradient)]);
    match expr {
        Map(map, _) => {
            one(Array::new(of[0].shape().to_vec(), map.backward(of[0].values(), made.values(), back.values())))
        }
        Combine(combine, ..) => {
            let shape = made.shape();
            let (a, b, g) = (spread(&of[0], shape), spread(&of[1], shape), view(back));
            let left = Zip::from(&g).and(&a).and(&b).map_collect(|&g, &a, &b| g * combine.derivatives(a, b).0);
            let right = Zip::from(&g).and(&a).and(&b).map_collect(|&g, &a, &b| g * combine.derivatives(a, b).1);
            Ok(vec![Some(gathered(left, of[0].shape())), Some(gathered(right, of[1].shape()))])
        }
        Where(..) => {
            let condition = spread(&of[0], made.shape());
            let side = |taken: bool| {
                Zip::from(&view(back)).and(&condition).map_collect(|&g, &c| if (c != 0.0) == taken { g } else { 0.0 })
            };
            Ok(vec![None, Some(gathered(side(true), of[1].shape())), Some(gathered(side(false), of[2].shape()))])
        }
        MatMul(..) => Ok(product(&of[0], &of[1], back)),
        Fold { how, axis, .. } => one(fold(*how, *axis, &of[0], made, back)?),
        Softmax { axis, log, .. } => {
            let mut gradient = owned(back);
            let axis = Axis(axis_of(of[0].shape(), *axis)?);
            Zip::from(gradient.lanes_mut(axis)).and(view(made).lanes(axis)).for_each(|mut g, y| {
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
        TopK { places: true, .. } => Ok(vec![None]),
        TopK { k, .. } => {
            let length = of[0].shape().last().copied().unwrap_or(1);
            let mut gradient = vec![0.0; of[0].values().len()];
            let lines = of[0].values().chunks_exact(length).zip(gradient.chunks_exact_mut(length));
            for ((line, out), back) in lines.zip(back.values().chunks_exact(*k)) {
                largest(line, *k).into_iter().zip(back).for_each(|(place, g)| out[place] += g);
            }
            one(Array::new(of[0].shape().to_vec(), gradient))
        }
        Index { picks, .. } => {
            let selection = Selection::new(of[0].shape(), picks)?;
            one(scattered(of[0].shape(), selection.places(), back.values()))
        }
        Put { picks, .. } => {
            let selection = Selection::new(of[0].shape(), picks)?;
            let written = Array::new(selection.shape.clone(), selection.gather(back.values()));
            let mut kept = back.values().to_vec();
            selection.places().for_each(|place| kept[place] = 0.0);
            let by = gathered(owned(&written), of[1].shape());
            Ok(vec![Some(Array::new(of[0].shape().to_vec(), kept)), Some(by)])
        }
        Take { .. } => {
            let places = taken(&of[0], &of[1])?;
            Ok(vec![Some(scattered(of[0].shape(), places.into_iter(), back.values())), None])
        }
        Reshape { .. } | Row { .. } => one(back.reshaped(of[0].shape().to_vec())),
        Permute { axes, .. } => {
            let mut inverse = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(new, &old)| inverse[old] = new);
            one(array(view(back).permuted_axes(IxDyn(&inverse)).to_owned()))
        }
        Concat { axis, .. } => Ok(split(of, axis_of(of[0].shape(), *axis)?, back)),
        Across { how, .. } => Ok(match how {
            plan::Across::Concat => split(of, 0, back),
            plan::Across::Stack => {
                let each = back.values().len() / of.len();
                let rows = of.iter().zip(back.values().chunks_exact(each.max(1)));
                rows.map(|(row, back)| Some(Array::new(row.shape().to_vec(), back.to_vec()))).collect()
            }
            plan::Across::Sum => of.iter().map(|_| Some(back.clone())).collect(),
            plan::Across::Mean => {
                let share = back.values().iter().map(|g| g / of.len() as f32).collect();
                let share = Array::new(back.shape().to_vec(), share);
                of.iter().map(|_| Some(share.clone())).collect()
            }
        }),
        Read(_) | Constant(_) | File(_) | WeightGrad { .. } => Ok(Vec::new()),
        Call { .. } => Err("a function of arrays has no gradient; build the metric from recorded operations".into()),
        Through { .. } | Unembed(_) => Err("it is the engine's to derive".into()),
    }
}

/// The gradient of an array of `shape` that was repeated to the gradient's own shape.
pub(crate) fn unspread(gradient: &Array, shape: &[usize]) -> Array {
    gathered(owned(gradient), shape)
}

/// Sums a gradient over the axes along which an input was repeated.
fn gathered(gradient: ArrayD<f32>, shape: &[usize]) -> Array {
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

fn scattered(shape: &[usize], places: impl Iterator<Item = usize>, back: &[f32]) -> Array {
    let mut gradient = vec![0.0; shape.iter().product()];
    places.zip(back).for_each(|(place, g)| gradient[place] += g);
    Array::new(shape.to_vec(), gradient)
}

fn split(parts: &[Array], axis: usize, back: &Array) -> Vec<Option<Array>> {
    let (mut from, whole) = (0, view(back));
    let cut = parts.iter().map(|part| {
        let to = from + part.shape()[axis];
        let share = whole.slice_axis(Axis(axis), (from..to).into()).to_owned();
        from = to;
        Some(array(share))
    });
    cut.collect()
}

/// Gradients of a product: of the left by the right's transpose, and the other way round.
fn product(a: &Array, b: &Array, back: &Array) -> Vec<Option<Array>> {
    let matrix = |array: &Array, row: bool| match array.shape() {
        [n] => array.reshaped(if row { vec![1, *n] } else { vec![*n, 1] }),
        _ => array.clone(),
    };
    let (left, right) = (matrix(a, true), matrix(b, false));
    let (m, n) = (left.shape()[left.shape().len() - 2], right.shape()[right.shape().len() - 1]);
    let before: Vec<usize> = match (a.shape().len(), b.shape().len()) {
        (1, 1) => vec![],
        (1, _) => back.shape()[..back.shape().len() - 1].to_vec(),
        (_, 1) => back.shape()[..back.shape().len() - 1].to_vec(),
        _ => back.shape()[..back.shape().len() - 2].to_vec(),
    };
    let back = back.reshaped([&before[..], &[m, n]].concat());
    let turned = |array: &Array| {
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
    let to_left = gathered(owned(&times(&back, &turned(&right))), left.shape());
    let to_right = gathered(owned(&times(&turned(&left), &back)), right.shape());
    vec![Some(to_left.reshaped(a.shape().to_vec())), Some(to_right.reshaped(b.shape().to_vec()))]
}

fn fold(how: Fold, axis: Option<i64>, of: &Array, made: &Array, back: &Array) -> Result<Array, String> {
    // All numbers at once are one lane.
    let lane = if axis.is_some() { of.clone() } else { of.reshaped(vec![of.values().len()]) };
    let axis = Axis(axis.map_or(Ok(0), |axis| axis_of(of.shape(), axis))?);
    let mut gradient = ArrayD::zeros(IxDyn(lane.shape()));
    let numbers = view(&lane);
    let lanes = gradient.lanes_mut(axis).into_iter().zip(numbers.lanes(axis));
    for ((mut out, x), (&y, &g)) in lanes.zip(made.values().iter().zip(back.values())) {
        let count = x.len() as f32;
        match how {
            Fold::Sum => out.fill(g),
            Fold::Mean => out.fill(g / count),
            Fold::Max | Fold::Min => {
                // Equal numbers share, as numpy's neighbours in the field have it.
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
    /// The gradient of its numbers `x`, from the gradient `dy` of its values `y`.
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
    /// Its derivatives by both numbers; equal numbers share the derivative of `max` and `min`.
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
