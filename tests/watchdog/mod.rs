//! Ends a test that hangs.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Far longer than any test takes, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `test`; if it does not end, ends the whole process and says which it was.
pub fn watched<T>(test: impl FnOnce() -> T) -> T {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (done, over) = channel::<()>();
    let dog = thread::spawn(move || {
        if over.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} has not ended within {} s", LIMIT.as_secs());
            std::process::abort();
        }
    });
    let result = test();
    drop(done);
    dog.join().expect("the watchdog does not panic");
    result
}
