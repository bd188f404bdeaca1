//! Shape inference for values.

use super::value_index::Selection;
use super::{Across, Expr};
use crate::memory_limit::{check_value_bytes, shape_bytes};

/// A shape, or an error message.
pub(crate) type Shape = Result<Vec<usize>, String>;

/// Returns the shape of an expression over inputs of these shapes; fails if it would not fit into
/// memory. The caller handles reads, constants, opaque calls and the model's own ops.
pub(crate) fn shape(expr: &Expr, of: &[&[usize]]) -> Shape {
    let shape = infer(expr, of)?;
    check_value_bytes(shape_bytes(&shape)).map_err(|problem| format!("shape {shape:?}: {problem}"))?;
    Ok(shape)
}

fn infer(expr: &Expr, of: &[&[usize]]) -> Shape {
    use Expr::*;
    match expr {
        Read(_) | Constant(_) | File(_) | WeightGrad { .. } | Through { .. } | Unembed(_) | Call { .. } => {
            Err("its shape does not follow from the shapes of its inputs".into())
        }
        Map(..) | Row { .. } => Ok(of[0].to_vec()),
        Combine(..) => broadcast(of[0], of[1]),
        Where(..) => broadcast(&broadcast(of[0], of[1])?, of[2]),
        MatMul(..) => matmul(of[0], of[1]),
        Fold { axis: None, keep, .. } => Ok(if *keep { vec![1; of[0].len()] } else { vec![] }),
        Fold { axis: Some(axis), keep, .. } => {
            let (mut shape, axis) = (of[0].to_vec(), axis_of(of[0], *axis)?);
            if shape[axis] == 0 {
                return Err("cannot reduce over an empty axis".into());
            }
            shape[axis] = 1;
            if !keep {
                shape.remove(axis);
            }
            Ok(shape)
        }
        Softmax { axis, .. } => axis_of(of[0], *axis).map(|_| of[0].to_vec()),
        TopK { k, .. } => match of[0].split_last() {
            Some((last, rest)) if (1..=*last).contains(k) => Ok([rest, &[*k]].concat()),
            Some((last, _)) => Err(format!("topk of {k} along an axis of {last}")),
            None => Err("topk of a scalar".into()),
        },
        Index { picks, .. } => Selection::new(of[0], picks).map(|selection| selection.shape),
        Put { picks, .. } => {
            let selection = Selection::new(of[0], picks)?.shape;
            check_broadcasts_to(of[1], &selection)?;
            Ok(of[0].to_vec())
        }
        Take { .. } => {
            let (_, rest) = of[0].split_last().ok_or("take of a scalar")?;
            if of[1] == rest || of[1].len() == rest.len() + 1 && of[1].starts_with(rest) {
                return Ok(of[1].to_vec());
            }
            Err(format!("take: indices of shape {:?} do not match a value of shape {:?}", of[1], of[0]))
        }
        Reshape { shape, .. } => reshape(of[0], shape),
        Permute { axes, .. } => {
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..of[0].len()) {
                return Err(format!("{axes:?} is not a permutation of the {} axes", of[0].len()));
            }
            Ok(axes.iter().map(|&axis| of[0][axis]).collect())
        }
        Concat { axis, .. } => concat(of, *axis),
        Across { how, .. } => across(*how, of),
    }
}

/// Returns the shape that two shapes broadcast to.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Shape {
    let rank = a.len().max(b.len());
    let length = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank)
        .map(|axis| match (length(a, axis), length(b, axis)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!("shapes {a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

/// Rejects a shape that does not broadcast to exactly `to`.
pub(crate) fn check_broadcasts_to(shape: &[usize], to: &[usize]) -> Result<(), String> {
    match broadcast(shape, to) {
        Ok(joint) if joint == to => Ok(()),
        _ => Err(format!("a value of shape {shape:?} does not broadcast to a selection of shape {to:?}")),
    }
}

/// Returns an axis as a non-negative index; negative axes count from the last.
pub(crate) fn axis_of(shape: &[usize], axis: i64) -> Result<usize, String> {
    let rank = shape.len() as i64;
    let from_first = if axis < 0 { axis + rank } else { axis };
    if (0..rank).contains(&from_first) {
        Ok(from_first as usize)
    } else {
        Err(format!("there is no axis {axis} in shape {shape:?}"))
    }
}

fn matmul(a: &[usize], b: &[usize]) -> Shape {
    let no = || format!("matmul of shapes {a:?} and {b:?}");
    match (a, b) {
        ([], _) | (_, []) => Err(no()),
        ([x], [y]) => (x == y).then(Vec::new).ok_or_else(no),
        ([x], [rest @ .., y, n]) => (x == y).then(|| [rest, &[*n]].concat()).ok_or_else(no),
        ([rest @ .., m, x], [y]) => (x == y).then(|| [rest, &[*m]].concat()).ok_or_else(no),
        ([before @ .., m, x], [after @ .., y, n]) if x == y => {
            Ok([&broadcast(before, after).map_err(|_| no())?[..], &[*m, *n]].concat())
        }
        _ => Err(no()),
    }
}

fn reshape(from: &[usize], to: &[i64]) -> Shape {
    let no = || format!("cannot reshape {from:?} to {to:?}");
    let count: usize = from.iter().product();
    let known = to.iter().filter(|&&n| n >= 0).try_fold(1usize, |product, &n| product.checked_mul(n as usize));
    let known = known.ok_or_else(no)?;
    let open = to.iter().filter(|&&n| n < 0).count();
    if open > 1 || to.iter().any(|&n| n < -1) || open == 1 && (known == 0 || !count.is_multiple_of(known)) {
        return Err(no());
    }
    let shape: Vec<usize> = to.iter().map(|&n| if n < 0 { count / known } else { n as usize }).collect();
    if shape.iter().product::<usize>() == count { Ok(shape) } else { Err(no()) }
}

fn concat(parts: &[&[usize]], axis: i64) -> Shape {
    let first = parts.first().ok_or("concat of an empty list")?;
    let axis = axis_of(first, axis)?;
    let mut shape = first.to_vec();
    shape[axis] = 0;
    for part in parts {
        let alike =
            part.len() == shape.len() && (0..shape.len()).all(|other| other == axis || part[other] == shape[other]);
        if !alike {
            return Err(format!("cannot concatenate shapes {first:?} and {part:?} along axis {axis}"));
        }
        shape[axis] = shape[axis].saturating_add(part[axis]);
    }
    Ok(shape)
}

/// Returns the shape of rows joined into one array.
fn across(how: Across, rows: &[&[usize]]) -> Shape {
    let first = rows.first().ok_or("`across` of no rows")?;
    if how == Across::Concat {
        return concat(rows, 0);
    }
    if let Some(other) = rows.iter().find(|other| *other != first) {
        return Err(format!("rows of shapes {first:?} and {other:?} can only be joined with `concat`"));
    }
    Ok(if how == Across::Stack { [&[rows.len()], *first].concat() } else { first.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_numpy() {
        assert_eq!(broadcast(&[3, 1], &[4]), Ok(vec![3, 4]));
        assert!(broadcast(&[3, 2], &[4]).is_err());
        assert_eq!(matmul(&[2, 3], &[3]), Ok(vec![2]));
        assert_eq!(matmul(&[5, 2, 3], &[3, 4]), Ok(vec![5, 2, 4]));
        assert!(matmul(&[2, 3], &[2, 3]).is_err());
        assert_eq!(reshape(&[2, 6], &[3, -1]), Ok(vec![3, 4]));
        assert!(reshape(&[2, 6], &[5, -1]).is_err());
        assert!(check_broadcasts_to(&[2, 1], &[1]).is_err());
    }
}
