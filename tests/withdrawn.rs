//! A rank that fails while the group forms, after it has entered itself: the others read in the roster that it has left.

mod watchdog;

use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use arx::arena::{Layout, Segment};
use arx::communicator::{Communicator, Config};
use arx::direct::{Board, Control};
use arx::error::Error;
use arx::health::{Roster, State};
use arx::rendezvous::{Job, Terms, join};
use arx::sync::Ordering;
use arx::wait::{Host, Plain};

use watchdog::watched;

const PATIENCE: Duration = Duration::from_secs(20);
const RING: usize = 2 << 20;

/// Presses Ctrl-C when told to.
struct Told(mpsc::Receiver<()>);

impl Host for Told {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }

    fn interrupted(&mut self) -> bool {
        self.0.try_recv().is_ok()
    }
}

#[test]
fn who_is_interrupted_after_it_has_entered_leaves_with_that_reason() {
    watched(|| {
        let id = format!("withdrawn-{}", std::process::id());
        let (control, region) = (size_of::<Control>() + Roster::bytes(3), 2 * size_of::<Board>());
        let layout = Layout::new(3, control, region, RING, 0, 1 << 30);
        let (press, told) = mpsc::channel();
        thread::scope(|scope| {
            let (first, second) = (id.clone(), id.clone());
            // Rank 2 never says that it is ready, so nobody is told to go.
            let hub = scope.spawn(move || {
                let job = Job { id: first, generation: 0, rank: 0, world: 3, timeout: PATIENCE };
                let seen = RefCell::new(None);
                let enter = |segment: &Arc<Segment>, _: &Layout| {
                    seen.replace(Some(Arc::clone(segment)));
                };
                let error =
                    join(&job, Terms { layout, settings: [0; 5] }, &enter, &mut Plain).expect_err("one is missing");
                (error, seen.into_inner().expect("entered"))
            });
            let guest = scope.spawn(move || {
                let config = Config {
                    rank: 1,
                    world: 3,
                    job_id: second,
                    generation: 0,
                    timeout: PATIENCE,
                    spin: None,
                    tune: None,
                    across: None,
                };
                Communicator::connect(config, &mut Told(told)).expect_err("interrupted")
            });
            let third = scope.spawn(move || {
                let job = Job { id, generation: 0, rank: 2, world: 3, timeout: PATIENCE };
                let enter = |segment: &Arc<Segment>, _: &Layout| {
                    let roster = Roster::new(Arc::clone(segment), size_of::<Control>(), 3);
                    while roster.state(1) != State::Active {
                        thread::yield_now();
                    }
                    let control: &Control = segment.at(0);
                    let before = control.alarm.load(Ordering::Acquire);
                    press.send(()).expect("rank 1 listens");
                    while roster.state(1) == State::Active {
                        thread::yield_now();
                    }
                    while control.alarm.load(Ordering::Acquire) == before {
                        thread::yield_now();
                    }
                };
                join(&job, Terms { layout, settings: [0; 5] }, &enter, &mut Plain).expect_err("rank 1 has left")
            });
            assert!(matches!(guest.join().expect("no panic"), Error::Interrupted));
            let (error, segment) = hub.join().expect("no panic");
            assert!(error.to_string().contains("rank 1 was interrupted"), "{error}");
            assert!(third.join().expect("no panic").to_string().contains("rank 1 was interrupted"));
            let roster = Roster::new(segment, size_of::<Control>(), 3);
            assert_eq!((roster.state(1), roster.state(2)), (State::Interrupted, State::Absent));
        });
    });
}
