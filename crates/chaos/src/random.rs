//! Random numbers that depend on the seed alone.
//!
//! Own and tiny (`SplitMix64`), so that a seed means the same plan whatever version of whatever crate
//! is in the tree.

/// A stream of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A stream of its own for one purpose: how much one draws does not change what another gets.
    pub(crate) fn fork(seed: u64, purpose: &str) -> Self {
        let mut state = seed;
        for byte in purpose.bytes() {
            state = mix(state.wrapping_add(GOLDEN) ^ u64::from(byte));
        }
        Self { state }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number below a limit; 0 for the limit 0. The bias of the remainder is below 2^-32 here.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// A number from one bound to the other, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).unwrap_or(u64::MAX))).unwrap_or(0)
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.index(items.len()))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

const fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut random = Random::new(1);
        let first: Vec<u64> = (0..3).map(|_| random.below(1_000)).collect();
        assert_eq!(first, [465, 519, 590]);
        let (mut one, mut other) = (Random::fork(1, "a"), Random::fork(1, "b"));
        assert_ne!(one.next(), other.next());
    }

    #[test]
    fn bounds_are_kept() {
        let mut random = Random::new(7);
        for _ in 0..1_000 {
            assert!((3..=5).contains(&random.between(3, 5)));
            assert!(random.index(4) < 4);
        }
        assert_eq!(random.pick::<u8>(&[]), None);
    }
}
