//! What a rank sends and receives outside collectives, beside the communicator: a collective that waits keeps no letter from
//! going on, and the other way round.
//!
//! ```text
//! exchange   a call that waits: drives, for itself and for all that is outstanding
//! post       hands a parcel in; goes on with it as far as it goes now
//! wait       drives until a parcel is done
//! rest+step  what a thread does with what is outstanding while nobody drives
//! ```
//! **Who drives.** One caller has the *seat*: it holds the mail for as long as it waits. The thread takes the mail for a step that
//! does not wait, and leaves it alone while the seat is taken or somebody wants the mail: so a caller takes over without a word.
//! Who hands something in while the seat is taken leaves it in the tray.
//!
//! **No wake-up is lost.** The thread sleeps on nothing that others wake for reasons of their own. While something is outstanding it
//! sleeps for so long as it says itself: at most [`NAP`], and a `SLICE` while another one drives. It sleeps longer only when nothing
//! is outstanding, until somebody has counted something in `pending` and then finds `asleep`; the thread stores `asleep` and looks
//! at `pending` afterwards. Both are sequentially consistent, so one of them sees the other; and the sleep begins under the lock
//! under which it is ended. Likewise a driver looks at the tray after it has registered with what it sleeps on, which is rung after
//! the tray was filled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::direct::Boards;
use crate::error::{Error, Rank, Result};
use crate::health::Ear;
use crate::post::{Office, Status};
use crate::wait::{Host, SLICE};

use super::commons::Commons;
use super::mail::{Exchange, Fault, Mail};
use super::outstanding::{Outstanding, Parcel, Tray};

/// First sleep of the thread after something has moved: a caller that waits next takes over before.
const FIRST: Duration = Duration::from_micros(50);

/// Longest sleep of the thread while something is outstanding: 500 looks a second are 0.3 % of a core.
const NAP: Duration = Duration::from_millis(2);

/// Who waits for a step to end gives way so often, which is enough for most, and then sleeps in between.
const YIELDS: u32 = 100;
const MOMENT: Duration = Duration::from_micros(50);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Done,
    TimedOut,
    Interrupted,
}

/// One rank's letters in a group.
#[derive(Debug)]
pub struct Letters {
    rank: Rank,
    mail: Mutex<Mail>,
    tray: Arc<Tray>,
    numbers: AtomicUsize,
    /// Somebody drives in the foreground, or is about to.
    seat: AtomicBool,
    /// Others who want the mail for a moment.
    wanted: AtomicUsize,
    /// The thread sleeps until it is told.
    asleep: AtomicBool,
    /// Callers that wait while another one drives.
    waiters: AtomicUsize,
    closing: AtomicBool,
    sleep: Mutex<()>,
    told: Condvar,
    /// What ends the sleep of who drives.
    boards: Option<Boards>,
    ear: OnceLock<Arc<Ear>>,
    closed: Arc<OnceLock<Error>>,
    commons: Arc<Commons>,
}

/// The mail, held by who drives in the foreground.
struct Seat<'a> {
    letters: &'a Letters,
    /// None once it is given back.
    mail: Option<MutexGuard<'a, Mail>>,
}

impl Seat<'_> {
    #[inline]
    fn mail(&mut self) -> &mut Mail {
        self.mail.as_mut().expect("given back when this is dropped")
    }
}

impl Drop for Seat<'_> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed, as where it is taken: only the holder of the mail writes it, and who reads it late looks again.
        self.letters.seat.store(false, Ordering::Relaxed);
        self.mail = None;
        if self.letters.is_busy() || self.letters.waiters.load(Ordering::SeqCst) > 0 {
            self.letters.tell();
        }
    }
}

impl Letters {
    pub(super) fn new(mail: Mail, commons: Arc<Commons>) -> Letters {
        Letters {
            rank: mail.me,
            tray: Arc::clone(&mail.tray),
            boards: mail.boards.clone(),
            closed: Arc::clone(&mail.closed),
            mail: Mutex::new(mail),
            numbers: AtomicUsize::new(0),
            seat: AtomicBool::new(false),
            wanted: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            sleep: Mutex::new(()),
            told: Condvar::new(),
            ear: OnceLock::new(),
            commons,
        }
    }

    /// Whether this rank is the only one.
    pub fn is_alone(&self) -> bool {
        self.boards.is_none()
    }

    /// Whether something is outstanding.
    pub fn is_busy(&self) -> bool {
        self.tray.pending.load(Ordering::SeqCst) > 0
    }

    /// Sends and receives what the call says, and waits for it.
    #[inline]
    pub(super) fn exchange(&self, call: &Exchange<'_>, host: &mut dyn Host) -> Result<Option<Status>> {
        let Some(mut seat) = self.sit(host) else { return Err(Error::busy(self.rank)) };
        let mail = seat.mail();
        if let Some(why) = self.closed.get() {
            return Err(why.clone());
        }
        let sent = mail.run(call, host).and_then(|status| mail.settle(host).map(|()| status));
        sent.map_err(|fault| self.fail(mail, fault))
    }

    /// Hands in a parcel, which goes on by itself. Its number.
    pub fn post(&self, parcel: Box<dyn Parcel>, host: &mut dyn Host) -> u64 {
        let number = self.tray.put(parcel, &self.numbers);
        match self.take_mail(host) {
            Some(mut mail) => drop(self.step_with(&mut mail, Duration::ZERO, &|| true, host)),
            None => self.wake_driver(),
        }
        if self.is_busy() {
            self.tell();
        }
        number
    }

    /// Waits for the parcel with that number, until `done` or `until`.
    pub fn wait(&self, number: u64, done: &dyn Fn() -> bool, until: Option<Instant>, host: &mut dyn Host) -> Waited {
        self.drive(&|_, _| done(), until, host, &|mail| {
            if until.is_none() {
                mail.end_never_sent(number);
            }
        })
    }

    /// Waits until everything has been sent, and received what has begun to come.
    pub fn flush(&self, host: &mut dyn Host) -> Waited {
        let over =
            |office: &Office, outstanding: &Outstanding| outstanding.unmet(office).len() == outstanding.iter().count();
        self.drive(&over, None, host, &|_| ())
    }

    fn drive(
        &self,
        over: &dyn Fn(&Office, &Outstanding) -> bool,
        until: Option<Instant>,
        host: &mut dyn Host,
        first: &dyn Fn(&mut Mail),
    ) -> Waited {
        loop {
            if let Some(mut seat) = self.sit(host) {
                let mail = seat.mail();
                self.step_with(mail, Duration::ZERO, &|| false, host);
                first(mail);
                if over(&mail.office, &mail.outstanding) {
                    return Waited::Done;
                }
                // Who is alone can be helped by another thread of this process only, which needs the mail for that.
                if !self.is_alone() {
                    match mail.drive(None, over, until, host) {
                        Ok(true) => return Waited::Done,
                        Ok(false) => return Waited::TimedOut,
                        Err(Fault { leave: None, error: Error::Interrupted }) => return Waited::Interrupted,
                        Err(fault) => drop(self.fail(mail, fault)),
                    }
                    continue;
                }
            }
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Waited::TimedOut;
            }
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let sleep = held(&self.sleep);
            drop(self.told.wait_timeout(sleep, left.min(SLICE)));
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            if host.interrupted() {
                return Waited::Interrupted;
            }
        }
    }

    /// Ends all that is outstanding: the group is left.
    pub fn give_up(&self, raised: bool) {
        held(&self.mail).give_up(raised);
    }

    /// Lets go of all ways. Nothing is posted any more.
    pub(super) fn close(&self) {
        let why = self.closed.get_or_init(|| Error::Init("the group has been shut down".into())).clone();
        let mut mail = held(&self.mail);
        mail.end_all(&why);
        mail.shut();
    }

    // What the thread does.

    /// Sleeps for a moment, or until there is something to drive; then for how long. None once `stop` was called.
    pub fn rest(&self, brief: &mut Duration) -> Option<Duration> {
        let closing = || self.closing.load(Ordering::SeqCst);
        let mut sleep = held(&self.sleep);
        // In a row of short letters it is not worth the while to be woken for each.
        if *brief >= NAP {
            self.asleep.store(true, Ordering::SeqCst);
            while !closing() && (!self.is_busy() || self.seat.load(Ordering::SeqCst)) {
                *brief = FIRST;
                sleep = match self.is_busy() {
                    true => self.told.wait_timeout(sleep, SLICE).unwrap_or_else(PoisonError::into_inner).0,
                    false => self.told.wait(sleep).unwrap_or_else(PoisonError::into_inner),
                };
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
        let from = Instant::now();
        if !closing() {
            drop(self.told.wait_timeout(sleep, *brief));
        }
        // A process that was stopped does not use up the patience of its letters.
        (!closing()).then(|| from.elapsed().min(2 * SLICE))
    }

    /// Goes on with what is outstanding, unless somebody else does; `ago`: how long it slept before.
    pub fn step(&self, ago: Duration, brief: &mut Duration, host: &mut dyn Host) {
        let others = || self.seat.load(Ordering::SeqCst) || self.wanted.load(Ordering::SeqCst) > 0;
        let mut moved = false;
        if !others()
            && self.is_busy()
            && let Some(mut mail) = self.try_mail()
        {
            moved = self.step_with(&mut mail, ago, &others, host);
        }
        *brief = if moved { FIRST } else { (2 * *brief).clamp(FIRST, NAP) };
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake();
    }

    // What all do.

    /// None if another one drives.
    #[inline]
    fn sit(&self, host: &mut dyn Host) -> Option<Seat<'_>> {
        let mail = self.take_mail(host)?;
        self.seat.store(true, Ordering::Relaxed);
        Some(Seat { letters: self, mail: Some(mail) })
    }

    fn try_mail(&self) -> Option<MutexGuard<'_, Mail>> {
        match self.mail.try_lock() {
            Ok(mail) => Some(mail),
            Err(TryLockError::Poisoned(broken)) => Some(broken.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// None if somebody drives; others have it for a moment only.
    #[inline]
    fn take_mail(&self, host: &mut dyn Host) -> Option<MutexGuard<'_, Mail>> {
        let mail = match self.try_mail() {
            Some(mail) => mail,
            None => self.await_mail(host)?,
        };
        if let Some(ear) = &mail.ear {
            self.ear.get_or_init(|| Arc::clone(ear));
        }
        Some(mail)
    }

    #[cold]
    fn await_mail(&self, host: &mut dyn Host) -> Option<MutexGuard<'_, Mail>> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let mut found = None;
        // Aside: whoever holds it may need the interpreter.
        host.aside(&mut || {
            let mut turns = 0;
            while found.is_none() && !self.seat.load(Ordering::SeqCst) {
                turns += 1;
                if turns < YIELDS {
                    std::thread::yield_now()
                } else {
                    std::thread::sleep(MOMENT)
                }
                found = self.try_mail();
            }
        });
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// A step, unless the group is closed: then nothing is left to be done. Whether anything moved.
    fn step_with(&self, mail: &mut Mail, ago: Duration, others: &dyn Fn() -> bool, host: &mut dyn Host) -> bool {
        let open = self.closed.get().map_or_else(|| self.commons.ensure_open(), |why| Err(why.clone()));
        if let Err(why) = open {
            mail.end_all(&why);
            self.tell_waiters();
            return true;
        }
        let before = self.tray.pending.load(Ordering::SeqCst);
        let moved = mail.step(ago, others, host).unwrap_or_else(|fault| {
            // Who closes ends what is left, with the reason for that.
            if !(matches!(fault.error, Error::Interrupted) && self.closing.load(Ordering::SeqCst)) {
                drop(self.fail(mail, fault));
            }
            true
        });
        if self.tray.pending.load(Ordering::SeqCst) < before {
            self.tell_waiters();
        }
        moved
    }

    /// What the caller raises. If the group cannot go on, it ends for all.
    #[cold]
    fn fail(&self, mail: &mut Mail, fault: Fault) -> Error {
        let Fault { leave, error } = fault;
        let Some((state, missing)) = leave else { return error };
        mail.leave(state, &missing);
        let why = self.closed.get_or_init(|| match &error {
            Error::Interrupted => Error::Aborted(format!(
                "the group is closed: this rank ({}) was interrupted while it sent or received{}",
                mail.roll.of(mail.me),
                mail.roll.of_group()
            )),
            other => other.clone(),
        });
        mail.end_all(why);
        self.tell_waiters();
        error
    }

    /// Something is over.
    fn tell_waiters(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    /// There is something to drive, or to look at.
    fn tell(&self) {
        if self.asleep.load(Ordering::SeqCst) || self.waiters.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        let _sleep = held(&self.sleep);
        self.told.notify_all();
    }

    /// Something lies in the tray for who drives.
    fn wake_driver(&self) {
        match (self.ear.get(), &self.boards) {
            (Some(ear), _) => ear.ring(),
            (None, Some(boards)) => boards.control().bell.ring(),
            (None, None) => {}
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
