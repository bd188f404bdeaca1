//! Decoding of small float formats (FP8 E4M3 and E5M2, E8M0, FP4 E2M1).

/// The value of an 8-bit float with 4 exponent bits (`E4M3FN`: no infinities, one NaN per sign).
pub(super) fn e4m3(code: u8) -> f32 {
    if code & 0x7f == 0x7f { f32::NAN } else { small_float(code, 3, 7) }
}

/// The value of an 8-bit float with 5 exponent bits (`E5M2`: infinities and NaNs as in IEEE).
pub(super) fn e5m2(code: u8) -> f32 {
    match code & 0x7f {
        0x7c => f32::INFINITY.copysign(if code & 0x80 == 0 { 1.0 } else { -1.0 }),
        0x7d..=0x7f => f32::NAN,
        _ => small_float(code, 2, 15),
    }
}

/// The value of an 8-bit power of two (`E8M0`); its last code is NaN.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        // 2⁻¹²⁷ is subnormal.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The values of a 4-bit float (`E2M1`), by code.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of a finite 8-bit float with this many mantissa bits.
fn small_float(code: u8, fraction_bits: u32, bias: i32) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(code & 0x7f) >> fraction_bits;
    let fraction = f32::from(code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits) as f32;
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(1 - bias),
        _ => (1.0 + fraction) * 2f32.powi(exponent - bias),
    };
    sign * magnitude
}

/// Lookup table of all 256 values of a one-byte format.
pub(super) fn table(value: fn(u8) -> f32) -> [f32; 256] {
    std::array::from_fn(|code| value(code as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_values_of_eight_bit_floats() {
        assert_eq!(
            [0x00, 0x01, 0x07, 0x08, 0x38, 0x7e].map(e4m3),
            [0.0, 0.001953125, 0.013671875, 0.015625, 1.0, 448.0]
        );
        assert_eq!([0x81, 0xb8, 0xfe].map(e4m3), [-0.001953125, -1.0, -448.0]);
        assert!(e4m3(0x80) == 0.0 && e4m3(0x80).is_sign_negative());
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!([0x01, 0x04, 0x3c, 0x7b, 0xfb].map(e5m2), [2f32.powi(-16), 2f32.powi(-14), 1.0, 57344.0, -57344.0]);
        assert_eq!([0x7c, 0xfc].map(e5m2), [f32::INFINITY, f32::NEG_INFINITY]);
        assert!((0x7d..=0x7f).chain(0xfd..=0xff).all(|code| e5m2(code).is_nan()));
    }

    #[test]
    fn extreme_values_of_powers_of_two() {
        assert_eq!([1, 126, 127, 128, 254].map(e8m0), [f32::MIN_POSITIVE, 0.5, 1.0, 2.0, 2f32.powi(127)]);
        assert_eq!(e8m0(0) * 2.0, f32::MIN_POSITIVE);
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn tables_hold_every_code() {
        let table = table(e4m3);
        assert!((0..=255).all(|code: u8| table[usize::from(code)].to_bits() == e4m3(code).to_bits()));
        assert!((0..8).all(|code| E2M1[code + 8] == -E2M1[code]));
    }
}
