//! The shape of a value, known before anything runs.

use super::value_index::Selection;
use super::{Across, Expr};

/// A shape, or why there is none.
pub(crate) type Shape = Result<Vec<usize>, String>;

/// The shape that an expression gives inputs of these shapes. Reads, constants, calls and the model's own ops are the caller's.
pub(crate) fn shape(expr: &Expr, of: &[&[usize]]) -> Shape {
    use Expr::*;
    match expr {
        Read(_) | Constant(_) | File(_) | WeightGrad { .. } | Through { .. } | Unembed(_) | Call { .. } => {
            Err("its shape does not follow from other shapes".into())
        }
        Map(..) | Row { .. } => Ok(of[0].to_vec()),
        Combine(..) => broadcast(of[0], of[1]),
        Where(..) => broadcast(&broadcast(of[0], of[1])?, of[2]),
        MatMul(..) => product(of[0], of[1]),
        Fold { axis: None, keep, .. } => Ok(if *keep { vec![1; of[0].len()] } else { vec![] }),
        Fold { axis: Some(axis), keep, .. } => {
            let (mut shape, axis) = (of[0].to_vec(), axis_of(of[0], *axis)?);
            if shape[axis] == 0 {
                return Err("there is nothing to summarise along an empty axis".into());
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
            Some((last, _)) => Err(format!("topk of {k} among {last} numbers")),
            None => Err("topk of a single number".into()),
        },
        Index { picks, .. } => Selection::new(of[0], picks).map(|selection| selection.shape),
        Put { picks, .. } => {
            let chosen = Selection::new(of[0], picks)?.shape;
            fits(of[1], &chosen)?;
            Ok(of[0].to_vec())
        }
        Take { .. } => {
            let (last, rest) = of[0].split_last().ok_or("a single number has no places to take")?;
            if of[1] == rest || of[1].len() == rest.len() + 1 && of[1].starts_with(rest) {
                return Ok(of[1].to_vec());
            }
            Err(format!("places of shape {:?} do not lead into {:?} of {last} numbers each", of[1], rest))
        }
        Reshape { shape, .. } => reshaped(of[0], shape),
        Permute { axes, .. } => {
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..of[0].len()) {
                return Err(format!("{axes:?} is no order of the {} axes", of[0].len()));
            }
            Ok(axes.iter().map(|&axis| of[0][axis]).collect())
        }
        Concat { axis, .. } => joined(of, *axis),
        Across { how, .. } => across(*how, of),
    }
}

/// The shape that two shapes broadcast to.
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

/// Refuses a shape that does not broadcast to exactly another.
pub(crate) fn fits(shape: &[usize], to: &[usize]) -> Result<(), String> {
    match broadcast(shape, to) {
        Ok(joint) if joint == to => Ok(()),
        _ => Err(format!("a value of shape {shape:?} does not fit a selection of shape {to:?}")),
    }
}

/// An axis counted from the first, of one that may count from the last.
pub(crate) fn axis_of(shape: &[usize], axis: i64) -> Result<usize, String> {
    let rank = shape.len() as i64;
    let from_first = if axis < 0 { axis + rank } else { axis };
    if (0..rank).contains(&from_first) {
        Ok(from_first as usize)
    } else {
        Err(format!("there is no axis {axis} in shape {shape:?}"))
    }
}

fn product(a: &[usize], b: &[usize]) -> Shape {
    let no = || format!("shapes {a:?} and {b:?} do not multiply");
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

fn reshaped(from: &[usize], to: &[i64]) -> Shape {
    let no = || format!("{from:?} cannot take the shape {to:?}");
    let count: usize = from.iter().product();
    let known: usize = to.iter().filter(|&&n| n >= 0).map(|&n| n as usize).product();
    let open = to.iter().filter(|&&n| n < 0).count();
    if open > 1 || to.iter().any(|&n| n < -1) || open == 1 && (known == 0 || !count.is_multiple_of(known)) {
        return Err(no());
    }
    let shape: Vec<usize> = to.iter().map(|&n| if n < 0 { count / known } else { n as usize }).collect();
    if shape.iter().product::<usize>() == count { Ok(shape) } else { Err(no()) }
}

fn joined(parts: &[&[usize]], axis: i64) -> Shape {
    let first = parts.first().ok_or("there is nothing to join")?;
    let axis = axis_of(first, axis)?;
    let mut shape = first.to_vec();
    shape[axis] = 0;
    for part in parts {
        let alike =
            part.len() == shape.len() && (0..shape.len()).all(|other| other == axis || part[other] == shape[other]);
        if !alike {
            return Err(format!("shapes {first:?} and {part:?} cannot be joined along axis {axis}"));
        }
        shape[axis] += part[axis];
    }
    Ok(shape)
}

/// The shape of rows joined into one.
fn across(how: Across, rows: &[&[usize]]) -> Shape {
    let first = rows.first().ok_or("there is no row to join")?;
    if how == Across::Concat {
        return joined(rows, 0);
    }
    if let Some(other) = rows.iter().find(|other| *other != first) {
        return Err(format!("rows of shapes {first:?} and {other:?} can only be joined by concat"));
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
        assert_eq!(product(&[2, 3], &[3]), Ok(vec![2]));
        assert_eq!(product(&[5, 2, 3], &[3, 4]), Ok(vec![5, 2, 4]));
        assert!(product(&[2, 3], &[2, 3]).is_err());
        assert_eq!(reshaped(&[2, 6], &[3, -1]), Ok(vec![3, 4]));
        assert!(reshaped(&[2, 6], &[5, -1]).is_err());
        assert!(fits(&[2, 1], &[1]).is_err());
    }
}
