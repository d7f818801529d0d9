//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), in which 2 generates all elements
//! but zero: so products are sums of logarithms. For coefficients; shards are multiplied by kernels.

/// Remainder of 0x11d when x^8 is carried out of a byte.
pub(crate) const REDUCTION: u8 = 0x1d;

const POWERS: [u8; 510] = powers();
const LOGARITHMS: [u8; 256] = logarithms();

/// The powers of 2, twice over so that a sum of two logarithms needs no reduction.
const fn powers() -> [u8; 510] {
    let mut powers = [1; 510];
    let mut exponent = 1;
    while exponent < 510 {
        let previous: u8 = powers[exponent - 1];
        powers[exponent] = (previous << 1) ^ if previous & 0x80 == 0 { 0 } else { REDUCTION };
        exponent += 1;
    }
    powers
}

/// Zero has none; its entry is never looked at.
const fn logarithms() -> [u8; 256] {
    let mut logarithms = [0; 256];
    let mut exponent = 0;
    while exponent < 255 {
        logarithms[POWERS[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    logarithms
}

/// The product of two elements.
pub(crate) const fn multiply(one: u8, other: u8) -> u8 {
    if one == 0 || other == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[one as usize] as usize + LOGARITHMS[other as usize] as usize]
}

/// The element whose product with `element`, which is not zero, is 1.
pub(crate) const fn inverse(element: u8) -> u8 {
    assert!(element != 0, "zero has no inverse");
    POWERS[255 - LOGARITHMS[element as usize] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: carry-less multiplication, reduced by 0x11d.
    fn slow_product(one: u8, other: u8) -> u8 {
        let wide =
            (0..8).filter(|bit| other >> bit & 1 == 1).fold(0_u16, |sum, bit| sum ^ (u16::from(one) << bit));
        let reduced = (8..16)
            .rev()
            .fold(wide, |rest, bit| if rest >> bit & 1 == 1 { rest ^ (0x11d << (bit - 8)) } else { rest });
        u8::try_from(reduced).unwrap()
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for one in 0..=255 {
            for other in 0..=255 {
                assert_eq!(multiply(one, other), slow_product(one, other), "{one} times {other}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        for element in 1..=255 {
            assert_eq!(multiply(element, inverse(element)), 1, "{element}");
        }
    }
}
