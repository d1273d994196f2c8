//! A group's queue: who runs a job, and that its end never waits for a thread that nobody wakes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use arx::communicator::{Communicator, Config};
use arx::error::Result;
use arx::progress::{Job, Progress, Waited};
use arx::wait::{Host, Plain};

const PATIENCE: Duration = Duration::from_secs(30);

/// Says who runs it, and ends when it is told to.
struct Held {
    began: Sender<Option<String>>,
    end: Receiver<()>,
}

impl Job for Held {
    fn run(&mut self, _communicator: &mut Communicator, _host: &mut dyn Host) -> Result<()> {
        self.began.send(thread::current().name().map(str::to_owned)).expect("somebody listens");
        self.end.recv().expect("somebody ends it");
        Ok(())
    }
}

fn held() -> (Held, Receiver<Option<String>>, Sender<()>) {
    let ((began, runner), (go, end)) = (channel(), channel());
    (Held { began, end }, runner, go)
}

#[test]
fn the_thread_ends_though_a_caller_has_emptied_the_queue() {
    let config = Config {
        rank: 0,
        world: 1,
        job_id: "progress".into(),
        generation: 0,
        timeout: PATIENCE,
        spin: None,
        tune: None,
        across: None,
    };
    let alone = Communicator::connect(config, &mut Plain).expect("a world of one");
    let progress = Arc::new(Progress::new(alone));
    let [first, second, third] = [held(), held(), held()];
    progress.push(first.0).expect("open");
    assert_eq!(first.1.recv_timeout(PATIENCE).expect("it runs").as_deref(), Some("arx-progress"));
    progress.push(second.0).expect("open");
    let last = progress.push(third.0).expect("open");
    let helper = {
        let progress = Arc::clone(&progress);
        thread::Builder::new().name("helper".into()).spawn(move || progress.wait(&last, None, &mut Plain))
    };
    // Most of the time it waits by now; if not, the thread runs what it would have, and the test says less.
    thread::sleep(Duration::from_millis(100));
    first.2.send(()).expect("it runs");
    second.1.recv_timeout(PATIENCE).expect("it runs");
    let (done, closed) = channel();
    thread::spawn({
        let progress = Arc::clone(&progress);
        move || {
            progress.close(false);
            done.send(())
        }
    });
    thread::sleep(Duration::from_millis(100));
    second.2.send(()).expect("it runs");
    third.1.recv_timeout(PATIENCE).expect("it runs");
    third.2.send(()).expect("it runs");
    assert_eq!(helper.expect("a thread").join().expect("no panic"), Waited::Done);
    closed.recv_timeout(PATIENCE).expect("the thread has ended");
}
