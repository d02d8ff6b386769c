//! Scales in 8 bits: 4 bits of exponent, 4 of mantissa, always positive.
//!
//! A byte is the top of an f16 without its sign, at 2^7 times the value: `(1 + m/16) 2^(e - 8)`
//! for e > 0, and `m 2^-11` below, so 0 is exact and small scales fade out instead of jumping.
//! A kernel decodes one with a shift, a conversion and a multiplication.

/// The largest scale a byte holds: (1 + 15/16) 2^7.
pub const SCALE8_MAX: f32 = 248.0;

/// The scale of a byte.
pub fn decode_scale8(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 4), f32::from(byte & 15));
    if exponent == 0 {
        mantissa * 2f32.powi(-11)
    } else {
        (1.0 + mantissa / 16.0) * 2f32.powi(exponent - 8)
    }
}

/// The byte nearest to a scale; above [`SCALE8_MAX`] the largest, for NaN and below 0 the
/// smallest.
pub fn encode_scale8(scale: f32) -> u8 {
    if scale.is_nan() || scale <= 0.0 {
        return 0;
    }
    let scale = scale.min(SCALE8_MAX);
    let exponent = (scale.log2().floor() as i32).max(-7);
    let sixteenths = (scale / 2f32.powi(exponent - 4)).round_ties_even() as i32;
    // A mantissa that rounds up to 32 carries into the exponent by itself.
    ((exponent + 7) * 16 + sixteenths).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_and_order_is_kept() {
        for byte in 0..=255u8 {
            assert_eq!(encode_scale8(decode_scale8(byte)), byte);
            if byte > 0 {
                assert!(decode_scale8(byte) > decode_scale8(byte - 1));
            }
        }
        assert_eq!(decode_scale8(0), 0.0);
        assert_eq!(decode_scale8(255), SCALE8_MAX);
    }

    #[test]
    fn a_byte_is_the_top_of_an_f16() {
        for byte in 0..=255u8 {
            let half = half::f16::from_bits(u16::from(byte) << 6);
            assert_eq!(half.to_f32() * 128.0, decode_scale8(byte));
        }
    }

    #[test]
    fn the_nearest_byte_is_chosen() {
        for i in 0..4000 {
            let scale = 2f32.powf(-13.0 + i as f32 * 0.0055);
            let error = |byte: u8| (decode_scale8(byte) - scale).abs();
            let best = (0..=255).map(error).fold(f32::MAX, f32::min);
            assert!(error(encode_scale8(scale)) <= best * 1.001, "{scale}");
        }
        assert_eq!(encode_scale8(f32::NAN), 0);
        assert_eq!(encode_scale8(f32::INFINITY), 255);
        assert_eq!(encode_scale8(-1.0), 0);
    }
}
