//! Plain memory and waiting, as loom sees them.

use loom::cell::UnsafeCell;

/// Stands for bytes of payload, ring or result. loom fails the model when two accesses, one of them a write, are not
/// ordered by the words around them: that is how an `Ordering` that is too weak comes to light.
#[derive(Debug, Default)]
pub struct Plain(UnsafeCell<u64>);

// SAFETY: loom checks every access; what is wrong ends the model before it is made.
unsafe impl Sync for Plain {}

impl Plain {
    pub fn set(&self, value: u64) {
        // SAFETY: as above.
        self.0.with_mut(|at| unsafe { *at = value });
    }

    pub fn get(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// Looks in vain after which a wait is not explored in more ways: two ranks that wait for a third could otherwise take
/// turns for ever. The execution itself goes on to its end, with all its checks.
const LOOKS: usize = 1;

/// Waits without a bell. A wait that nobody ends is a model that never ends, which loom reports.
#[allow(dead_code, reason = "the models of sleeping do without")]
pub fn until(mut ready: impl FnMut() -> bool) {
    let mut looks = 0;
    while !ready() {
        looks += 1;
        if looks > LOOKS {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}
