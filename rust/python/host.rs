//! Python as the host of a wait: the GIL is released while a rank waits for another, and signal handlers run.
#![allow(unsafe_code)]

use pyo3::prelude::*;

use crate::wait::Host;

/// Says that a closure may run while the GIL is released although it holds pointers.
struct Detachable<T>(T);

// SAFETY: `Python::detach` runs its closure on the calling thread; nothing is sent anywhere. What the closure must not do
// is touch Python objects, and those that come here touch array memory and shared memory only.
unsafe impl<T> Send for Detachable<T> {}

/// Runs `work`, which touches no Python object, with the GIL released.
pub fn detach<R>(py: Python<'_>, work: impl FnOnce() -> R) -> R {
    let work = Detachable(work);
    py.detach(move || {
        // The whole wrapper is moved in, not its field alone.
        let Detachable(work) = { work };
        Detachable(work())
    })
    .0
}

/// The caller of a short collective, who keeps the GIL until waiting takes long.
pub struct Attached<'py> {
    pub py: Python<'py>,
    pub raised: Option<PyErr>,
}

impl Host for Attached<'_> {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        detach(self.py, wait);
    }

    fn interrupted(&mut self) -> bool {
        self.raised = self.py.check_signals().err();
        self.raised.is_some()
    }
}

/// The caller of a long collective, who has released the GIL for all of it.
#[derive(Default)]
pub struct Detached {
    pub raised: Option<PyErr>,
}

impl Host for Detached {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }

    fn interrupted(&mut self) -> bool {
        // While the interpreter shuts down nobody can be asked, and nobody reads the result.
        match Python::try_attach(|py| py.check_signals()) {
            Some(answer) => self.raised = answer.err(),
            None => return true,
        }
        self.raised.is_some()
    }
}
