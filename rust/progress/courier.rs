//! Messages whose callers do not wait: a ticket for each, and a thread that goes on with them while nobody drives.
//!
//! ```text
//! post(message) ─► Letters ─► as far as it goes at once ─► done? else the thread, or whoever waits for any message
//! ```
//! Unlike jobs they are in no order among each other, nor with collectives: that is the business of the post office. The thread
//! starts with the first message that is not done when its call returns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::communicator::{Exchange, Letters, Parcel, Status, Waited};
use crate::error::{Error, Result};
use crate::wait::Host;

use super::{Background, Ticket};

/// What is sent, received, or both, with its memory.
pub trait Message: Send + 'static {
    fn call(&self) -> Exchange<'_>;
    /// It is done.
    fn done(&mut self, status: Option<Status>);
}

/// Done, and nobody holds their tickets.
type Orphans<M> = Mutex<Vec<Ticket<M>>>;

/// A message under way.
struct Sealed<M> {
    message: M,
    ticket: Arc<Ticket<M>>,
    orphans: Arc<Orphans<M>>,
}

impl<M: Message> Parcel for Sealed<M> {
    fn call(&self) -> Exchange<'_> {
        self.message.call()
    }

    fn end(self: Box<Self>, outcome: Result<Option<Status>>) {
        let Sealed { mut message, ticket, orphans } = *self;
        let outcome = outcome.map(|status| message.done(status));
        ticket.end(message, outcome);
        held(&orphans).extend(Arc::into_inner(ticket));
    }
}

/// What a caller keeps of a message.
#[derive(Debug)]
pub struct Receipt<M> {
    pub ticket: Arc<Ticket<M>>,
    number: u64,
}

/// A group's messages that do not wait.
#[derive(Debug)]
pub struct Courier<M: Message> {
    letters: Arc<Letters>,
    orphans: Arc<Orphans<M>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What the thread waits for is to be given up.
    abort: Arc<AtomicBool>,
    closed: AtomicBool,
    /// Process that has the thread; a fork of it has none.
    owner: u32,
}

impl<M: Message> Courier<M> {
    pub fn new(letters: Arc<Letters>) -> Courier<M> {
        Courier {
            letters,
            orphans: Arc::default(),
            thread: Mutex::new(None),
            abort: Arc::default(),
            closed: AtomicBool::new(false),
            owner: std::process::id(),
        }
    }

    /// Begins a message.
    pub fn post(&self, message: M, host: &mut dyn Host) -> Result<Receipt<M>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Init("the group has been shut down".into()));
        }
        let ticket = Arc::new(Ticket::new(None, false));
        let parcel = Sealed { message, ticket: Arc::clone(&ticket), orphans: Arc::clone(&self.orphans) };
        let number = self.letters.post(Box::new(parcel), host);
        if !ticket.is_done() && !self.letters.is_alone() {
            self.ensure_thread()?;
        }
        Ok(Receipt { ticket, number })
    }

    /// Waits for a message, and goes on with all others meanwhile.
    pub fn wait(&self, receipt: &Receipt<M>, limit: Option<Duration>, host: &mut dyn Host) -> Waited {
        let until = limit.map(|limit| Instant::now() + limit.min(Duration::from_secs(1 << 30)));
        self.letters.wait(receipt.number, &|| receipt.ticket.is_done(), until, host)
    }

    /// Whether there are messages that are not done.
    pub fn is_busy(&self) -> bool {
        self.letters.is_busy()
    }

    /// Waits until all that is to be sent has been sent.
    pub fn flush(&self, host: &mut dyn Host) -> Waited {
        self.letters.flush(host)
    }

    /// What was done for callers who do not want to know any more: to be dropped by a caller.
    pub fn orphans(&self) -> Vec<Ticket<M>> {
        std::mem::take(&mut *held(&self.orphans))
    }

    /// Ends the thread, and all that is outstanding. No message is taken any more; `raised`: the group is left with an exception.
    pub fn close(&self, raised: bool) {
        self.closed.store(true, Ordering::Release);
        // In this order: who is told to give up sees why.
        self.letters.stop();
        self.abort.store(true, Ordering::Release);
        let thread = held(&self.thread).take();
        if let Some(thread) = thread {
            // A panic there has already been printed.
            let _ = thread.join();
        }
        self.letters.give_up(raised);
    }

    fn ensure_thread(&self) -> Result<()> {
        let mut thread = held(&self.thread);
        if thread.is_none() {
            let (letters, abort) = (Arc::clone(&self.letters), Arc::clone(&self.abort));
            let started = std::thread::Builder::new().name("arx-letters".into()).stack_size(512 << 10);
            let started = started.spawn(move || serve(&letters, &mut Background { abort: &abort }));
            *thread = Some(started.map_err(|e| Error::os("cannot start the thread for messages", e))?);
        }
        Ok(())
    }
}

impl<M: Message> Drop for Courier<M> {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.close(true);
            return;
        }
        // As for `Progress`.
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        std::mem::forget((thread, Arc::clone(&self.letters), Arc::clone(&self.orphans)));
    }
}

/// The life of the thread.
fn serve(letters: &Letters, host: &mut dyn Host) {
    let mut brief = Duration::ZERO;
    while let Some(ago) = letters.rest(&mut brief) {
        letters.step(ago, &mut brief, host);
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
