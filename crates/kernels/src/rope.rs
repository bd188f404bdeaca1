//! Rotary position embedding (RoPE).

/// Which channels form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum RopeStyle {
    /// Channels `i` and `i + n/2` (rotate-half: Llama, GPT-NeoX).
    Halves,
    /// Channels `2i` and `2i + 1` (interleaved: GPT-J, GLM).
    Pairs,
}

/// Rotates the first `2 · cos.len()` channels of a head by the angles with these cosines and sines.
pub fn rotate(style: RopeStyle, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    match style {
        RopeStyle::Halves => {
            let (a, b) = head[..2 * half].split_at_mut(half);
            for (((x, y), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*x, *y) = (*x * c - *y * s, *y * c + *x * s);
            }
        }
        RopeStyle::Pairs => {
            for ((pair, &c), &s) in head[..2 * half].chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_by_90_degrees_swaps_the_pair_and_leaves_the_rest() {
        let (cos, sin) = ([0.0, 0.0], [1.0, 1.0]);
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rotate(RopeStyle::Halves, &mut head, &cos, &sin);
        assert_eq!(head, [-3.0, -4.0, 1.0, 2.0, 9.0]);
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rotate(RopeStyle::Pairs, &mut head, &cos, &sin);
        assert_eq!(head, [-2.0, 1.0, -4.0, 3.0, 9.0]);
    }
}
