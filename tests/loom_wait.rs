//! The waiting protocol under every interleaving: nobody sleeps through what it waits for.
//!
//! loom's futex (`wait/bell.rs`) never wakes by time, so a lost wake-up is a deadlock, which loom reports. In production the
//! slice would hide it as a wait that is 50 ms too long.
#![cfg(loom)]

mod watched;

use std::time::Duration;

use arx::sync::{AtomicU64, Ordering};
use arx::wait::{Bell, Patience, Plain as Host, Stop, Wait, raise};
use loom::sync::Arc;
use loom::thread;
use watched::Plain;

/// Words of one waiter and those whom it waits for.
#[derive(Default)]
struct Scene {
    bell: Bell,
    alarm: AtomicU64,
    /// Whether the peer has left, as the roster would say.
    left: AtomicU64,
    word: AtomicU64,
    data: Plain,
}

impl Scene {
    fn publish(&self, value: u64) {
        self.data.set(value);
        self.word.store(value, Ordering::Release);
        self.bell.ring();
    }

    fn leave(&self) {
        self.left.store(1, Ordering::Release);
        raise(&self.alarm, &self.bell);
    }

    /// Waits in the way of production, without spinning.
    fn wait_for(&self, value: u64) -> Result<(), Stop> {
        let forever = Patience { spin: Duration::ZERO, limit: Duration::MAX };
        let gone = || self.left.load(Ordering::Acquire) == 1;
        let mut wait = Wait { bell: &self.bell, alarm: &self.alarm, gone: &gone, patience: forever, host: &mut Host };
        wait.until(|| self.word.load(Ordering::Acquire) >= value)
    }
}

/// Runs `others` in threads of their own, `first` in the model's. Two threads are few enough for letting them interrupt
/// each other more often than models usually do.
fn explore(first: fn(&Scene), others: &'static [fn(&Scene)]) {
    let mut model = loom::model::Builder::new();
    let more = if others.len() == 1 { 2 } else { 0 };
    model.preemption_bound = model.preemption_bound.map(|bound| bound + more);
    model.check(move || {
        let scene = Arc::new(Scene::default());
        let start = |other: &fn(&Scene)| {
            let (scene, other) = (Arc::clone(&scene), *other);
            thread::spawn(move || other(&scene))
        };
        let threads: Vec<_> = others.iter().map(start).collect();
        first(&scene);
        for thread in threads {
            thread.join().expect("a waiter");
        }
    });
}

fn await_one(scene: &Scene) {
    assert_eq!(scene.wait_for(1), Ok(()));
    assert_eq!(scene.data.get(), 1);
}

#[test]
fn a_sleeper_is_woken() {
    explore(|scene| scene.publish(1), &[await_one]);
}

#[test]
fn every_sleeper_is_woken() {
    explore(|scene| scene.publish(1), &[await_one, await_one]);
}

#[test]
fn the_bell_by_itself() {
    explore(
        |scene| scene.publish(1),
        &[|scene| {
            while scene.word.load(Ordering::Acquire) == 0 {
                scene.bell.sleep(&mut || scene.word.load(Ordering::Acquire) != 0);
            }
        }],
    );
}

#[test]
fn a_departure_wakes_whoever_waits_for_the_one_who_left() {
    explore(Scene::leave, &[|scene| assert_eq!(scene.wait_for(1), Err(Stop::Gone))]);
}

#[test]
fn what_was_published_before_leaving_counts() {
    explore(
        |scene| {
            scene.publish(1);
            scene.leave();
        },
        &[await_one],
    );
}

#[test]
fn an_alarm_that_concerns_others_does_not_end_a_wait() {
    explore(
        |scene| {
            raise(&scene.alarm, &scene.bell);
            scene.publish(1);
        },
        &[await_one],
    );
}

#[test]
fn words_and_sleeps_in_both_directions() {
    explore(
        |scene| {
            scene.publish(1);
            assert_eq!(scene.wait_for(2), Ok(()));
        },
        &[|scene| {
            assert_eq!(scene.wait_for(1), Ok(()));
            scene.publish(2);
        }],
    );
}
