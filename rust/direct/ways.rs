//! The ways in which large blocks may be moved, and sets of them.

/// How blocks are moved; in place it has no choice between kernel and rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub kernel: bool,
    /// What is long is written past the caches.
    pub past_caches: bool,
}

/// In the order in which they are preferred if they are equally fast.
pub(super) const WAYS: [Way; 4] = [
    Way { kernel: false, past_caches: false },
    Way { kernel: false, past_caches: true },
    Way { kernel: true, past_caches: false },
    Way { kernel: true, past_caches: true },
];

/// Those among which there is a choice, each as a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ways(pub u8);

impl Ways {
    pub fn those(allowed: impl Fn(Way) -> bool) -> Ways {
        let bits = WAYS.iter().enumerate().map(|(at, way)| u8::from(allowed(*way)) << at);
        Ways(bits.fold(0, |all, bit| all | bit))
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..WAYS.len()).filter(move |at| self.0 >> at & 1 == 1)
    }

    /// Whose turn it is after so many.
    pub fn turn(self, number: usize) -> usize {
        self.iter().nth(number % self.count()).expect("there is a way")
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// If it is no choice.
    pub fn only(self) -> Option<usize> {
        (self.count() == 1).then(|| self.0.trailing_zeros() as usize)
    }
}
