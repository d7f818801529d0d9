//! straw2: every item draws a straw, and the longest wins. A straw's length is the logarithm of a uniform draw
//! divided by the item's weight, so an item wins as often as its share of the weight, and changing one weight
//! moves only the PGs that this item wins or loses.
//!
//! The longest straw of several items is distributed as one straw of their weights' sum. So we let
//! only OSDs draw: the straw of a host, a rack or a zone is the longest within it, and choosing
//! domains first and descending into them is the same as taking OSDs in the order of their straws
//! and passing over domains that are taken. That keeps the movement as small as it can be: one OSD
//! more or less changes at most one member of any PG, which separate draws for each level of the
//! tree would not.

use atoll_types::mix;

use crate::invariants;

/// Length of an item's straw, never above zero. `weight` is above zero.
pub(crate) fn straw(key: u64, item: u64, weight: f64) -> f64 {
    // Without the constant, item 0 would draw the key itself.
    let draw = mix(key ^ mix(item.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    let uniform = ((draw >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
    let length = uniform.ln() / weight;
    invariants::straw_is_drawn_by_weight(weight, length);
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_wins_by_its_share_of_the_weight() {
        let weights = [1.0, 2.0, 5.0, 0.5];
        let mut wins = [0; 4];
        for key in 0..40_000_u64 {
            let length = |item: usize| straw(mix(key), item as u64, weights[item]);
            wins[(0..4).max_by(|one, other| length(*one).total_cmp(&length(*other))).unwrap()] += 1;
        }
        for (item, weight) in weights.iter().enumerate() {
            let share = f64::from(wins[item]) / 40_000.0;
            assert!((share - weight / 8.5).abs() < 0.01, "item {item}: {share} for weight {weight}");
        }
    }
}
