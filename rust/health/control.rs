//! How ranks of several hosts learn of each other's death, and agree on whose fault a failure is.
//!
//! Every rank keeps one connection to rank 0 for the life of the group, and one thread that listens to it (`operator`).
//! Rank 0's thread sees every process that dies and every host that vanishes; whatever keeps calls from ending is told to
//! it, and it (`judge`) pronounces one verdict that all ranks raise. If rank 0 itself is gone, the others tell each other what
//! they have heard of it (`inquest`) before they name it.
//!
//! ```text
//! a call: begun(s) … its waits look at broken(s), and sleep on alert_fd besides whatever else … completed(s)
//!                       │ time-out, another fingerprint, a broken link, somebody left
//!                       ▼
//!                    settle(report): tell rank 0, wait a moment for its verdict ──► verdict.error()
//! ```
//! Nothing here waits without a deadline. What the calls are, and how data moves, is not known here.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::admission::{Channel, Claim, Dial, GroupId, Key, Missed, Network, dial, socket};
use crate::error::{Error, Rank, Result, ranks, seconds};
use crate::sync::Ordering;
use crate::transport::tcp;
use crate::wait::{Host, SLICE};

use super::contacts::{Contacts, Member};
use super::desk::{Desk, Ear, calm};
use super::news::News;
use super::operator::Operator;
use super::roster::State;
use super::seat::{Group, Seat};
use super::verdict::{Kind, Left, Report, Verdict, departed};

/// How long a verdict may take: longer than every inquiry of the judge, than an inquest, and than the difference between the
/// moments in which two connections to one vanished host are given up.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Longest pause between attempts to reach a rank.
const PAUSE: Duration = Duration::from_millis(200);

/// A rank's end of the control connections, for the calls of one group.
#[derive(Debug)]
pub struct Control {
    office: Arc<Office>,
    seat: Arc<Seat>,
}

/// What all groups of the job share.
#[derive(Debug)]
struct Office {
    me: Rank,
    members: Vec<Member>,
    key: Key,
    network: Network,
    silence: Duration,
    desk: Arc<Desk>,
    descriptors: Vec<RawFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Starts the control thread, for the group of all. `raise` is called by it when calls must look up: a verdict is there,
    /// somebody has left, or `say` is wanted. It is told who has left the job, or is lost, since it was called last; it wakes
    /// those who do not sleep on `alert_fd`, and must not wait.
    pub fn start(contacts: Contacts, raise: impl Fn(&[(Rank, State)]) + Send + Sync + 'static) -> Result<Control> {
        let desk = Arc::new(Desk::new(Box::new(raise))?);
        let lines = contacts.lines.iter().map(|(_, line)| line.as_fd().as_raw_fd());
        let own = [contacts.porch.descriptor(), desk.wake.as_raw_fd(), desk.alert.as_raw_fd()];
        let (me, silence, members) = (contacts.me, contacts.silence, contacts.members.clone());
        let (key, network) = (contacts.key.clone(), contacts.network.clone());
        let descriptors = lines.chain(own).collect();
        let operator = Operator::new(contacts, Arc::clone(&desk));
        let thread = std::thread::Builder::new()
            .name("arx-control".into())
            .stack_size(256 << 10)
            .spawn(move || operator.run())
            .map_err(|e| Error::os("cannot start the control thread", e))?;
        let seat = desk.open(&Group::job(members.len() as u32));
        let thread = Mutex::new(Some(thread));
        let office = Office { me, members, key, network, silence, desk, descriptors, thread };
        Ok(Control { office: Arc::new(office), seat })
    }

    /// For the calls of another group, of which this rank is a member. It is left when this is dropped.
    pub fn of_group(&self, group: &Group) -> Control {
        Control { office: Arc::clone(&self.office), seat: self.desk().open(group) }
    }

    fn desk(&self) -> &Desk {
        &self.office.desk
    }

    fn id(&self) -> GroupId {
        self.seat.group.id
    }

    fn post(&self, news: News) {
        self.desk().post(&self.seat.group, news);
    }

    /// Everybody, by rank.
    pub fn members(&self) -> &[Member] {
        &self.office.members
    }

    /// Descriptors that a forked child must close: as long as it holds them, this rank's death is not seen.
    pub fn descriptors(&self) -> &[RawFd] {
        &self.office.descriptors
    }

    /// How many connections have been turned away so far.
    pub fn strangers(&self) -> u64 {
        self.desk().strangers.load(Ordering::Relaxed)
    }

    /// Call `sequence` begins on this rank.
    #[inline]
    pub fn begun(&self, sequence: u64) {
        self.seat.begin(sequence);
    }

    /// Call `sequence` has ended well on this rank.
    #[inline]
    pub fn completed(&self, sequence: u64) {
        self.seat.complete(sequence);
    }

    pub fn verdict(&self) -> Option<&Verdict> {
        self.seat.verdict()
    }

    /// Whether call `sequence` can no longer end: there is a verdict, or somebody who is needed has left.
    #[inline]
    pub fn broken(&self, sequence: u64) -> bool {
        self.seat.is_broken(sequence)
    }

    /// Whether `say` is wanted for call `sequence`; true once.
    pub fn asked(&self, sequence: u64) -> bool {
        self.seat.is_asked(sequence)
    }

    /// What this rank calls in call `sequence`.
    pub fn say(&self, sequence: u64, call: &str) {
        self.post(News::Says { sequence, call: call.into() });
    }

    /// Call `sequence` takes long here. Ranks may be in different calls and each wait for one that has nothing to tell it.
    pub fn lingers(&self, sequence: u64, fingerprint: u64) {
        self.post(News::Lingers { sequence, fingerprint });
    }

    /// Becomes readable when anything here has changed, and stays so until `calm`.
    pub fn alert_fd(&self) -> BorrowedFd<'_> {
        self.desk().alert.as_fd()
    }

    /// To be called before looking at what has changed.
    pub fn calm(&self) {
        calm(&self.desk().alert);
    }

    /// A descriptor of one's own that is alerted as `alert_fd` is, for waits at the same time as those of collectives.
    pub fn ear(&self) -> Result<Arc<Ear>> {
        self.desk().ear()
    }

    /// The next call of this rank, or the one in which it is.
    pub fn next(&self) -> u64 {
        self.seat.completed() + 1
    }

    /// Tells rank 0 what happens here.
    pub fn report(&self, report: Report) {
        self.post(News::Report(report));
    }

    /// Leaves the group, in the sight of all. Calls up to the last one completed do not need this rank any more. Who has
    /// finished with the group of all, or has raised in it, leaves all others too.
    pub fn leave(&self, state: State) {
        let id = self.id();
        let departs = matches!(state, State::Finished | State::Raised);
        if departs {
            self.desk().hang_up(|group| id.is_job() || group == id);
        }
        if id.is_job() {
            if departs {
                self.desk().leave_all(self.office.me, state);
            }
        } else if !self.seat.leave() {
            return;
        }
        self.post(News::Left(Left { rank: self.office.me, state, completed: self.seat.completed() }));
    }

    /// Ends the control thread, for all groups of the job, once what was said last is on its way.
    pub fn close(&self) {
        self.office.close();
    }

    /// Tells rank 0 what happens here, and waits for the verdict. If none comes, rank 0 does not answer or has left, and
    /// this rank says what it knows.
    pub fn settle(&self, report: Report, host: &mut dyn Host) -> Result<Verdict> {
        self.report(report.clone());
        let until = Instant::now() + PATIENCE;
        loop {
            self.calm();
            let alone = self.desk().is_orphaned() || Instant::now() >= until;
            if let Some(verdict) = self.verdict() {
                return Ok(verdict.clone());
            }
            if alone {
                self.desk().pronounce(&self.seat.group, self.own_verdict(&report));
                continue;
            }
            self.rest(until, host)?;
        }
    }

    /// Sleeps until something has changed here, for a slice of time at most.
    fn rest(&self, until: Instant, host: &mut dyn Host) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now()).min(SLICE);
        socket::rest(&mut [PollFd::from_borrowed_fd(self.alert_fd(), PollFlags::IN)], left, host)
    }

    fn own_verdict(&self, report: &Report) -> Verdict {
        let verdict = |kind, ranks, text| Verdict { kind, ranks, text };
        let Office { me, members, desk, .. } = &*self.office;
        let (of, orphaned) = (self.seat.group.suffix(), desk.is_orphaned());
        let left = |sequence, call: &str| departed(self.seat.left().into_iter(), sequence, &of, call);
        let hub = if orphaned { "has left" } else { "does not answer" };
        let silent = |what: String| {
            let text =
                format!("{what}, and rank 0 ({}), which would know more, {hub}. The group is closed", members[0]);
            verdict(Kind::TimedOut, vec![0], text)
        };
        match report {
            Report::TimedOut { sequence, call, waited, awaited } => left(*sequence, call).unwrap_or_else(|| {
                let what = format!("rank {me} waited {} in call #{sequence}{of} {call}", seconds(*waited));
                match orphaned && !awaited.is_empty() {
                    true => {
                        let text = format!("{what} for {}. The group is closed", ranks(awaited));
                        verdict(Kind::TimedOut, awaited.clone(), text)
                    }
                    false => silent(what),
                }
            }),
            Report::Stuck { sequence, call } => left(*sequence, call)
                .unwrap_or_else(|| silent(format!("somebody left before call #{sequence}{of} {call}"))),
            Report::Broken { sequence, rank, why } => left(*sequence, "").unwrap_or_else(|| {
                let named = members.get(*rank as usize).map_or_else(String::new, |member| format!(" ({member})"));
                let text = format!(
                    "rank {rank} lost: the link from rank {me} to it{named} broke ({why}), and rank 0, which would know more, \
                     {hub}. The group is closed"
                );
                verdict(Kind::Lost, vec![*rank], text)
            }),
            Report::Differs { sequence, call } => {
                let text = format!(
                    "call #{sequence}{of} differs between ranks: rank {me} called {call}; what the others called is not known, \
                     since rank 0 {hub}. The group is closed"
                );
                verdict(Kind::Mismatch, vec![*me], text)
            }
            Report::Refused { sequence, reason } => {
                let text =
                    format!("rank {me} could not take part in call #{sequence}{of} ({reason}). The group is closed");
                verdict(Kind::Mismatch, vec![*me], text)
            }
            Report::Failed { text } => verdict(Kind::Failed, vec![*me], text.clone()),
        }
    }

    /// The streams 0 to `count` that `rank`, which is higher, has opened to this one; `None` until all have come. Sockets
    /// are prepared for a link (`transport::tcp::prepare`).
    pub fn take(&self, rank: Rank, count: u16) -> Option<Vec<OwnedFd>> {
        self.desk().take(self.id(), rank, count)
    }

    /// Ranks that have opened a connection to send this one something, since this was asked last.
    pub fn take_posts(&self) -> Vec<(Rank, OwnedFd)> {
        self.desk().take_posts(self.id())
    }

    /// How many such connections have come in so far, for whatever group.
    pub fn posts(&self) -> u64 {
        self.desk().posts()
    }

    /// Whether a rank has left the group, or the job.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.seat.left().iter().any(|left| left.rank == rank)
    }

    /// Whether it has, and its connections for letters end with the last that it has sent.
    pub fn has_hung_up(&self, rank: Rank) -> bool {
        let hung_up = |left: &Left| matches!(left.state, State::Finished | State::Raised);
        self.seat.left().iter().any(|left| left.rank == rank && hung_up(left))
    }

    /// Opens a connection by which this rank sends another one something; None if that has left, before or meanwhile.
    pub fn dial_post(&self, rank: Rank, until: Instant, host: &mut dyn Host) -> Result<Option<OwnedFd>> {
        let gone = || self.has_left(rank);
        let Some(socket) = self.call(rank, Channel::Post(self.id()), (until, &gone), host)? else { return Ok(None) };
        let second =
            socket.try_clone().map_err(|e| Error::Init(format!("no second descriptor of a connection: {e}")))?;
        self.desk().keep(self.id(), second);
        Ok(Some(socket))
    }

    /// Opens one stream to a lower rank.
    pub fn dial(&self, rank: Rank, stream: u16, until: Instant, host: &mut dyn Host) -> Result<OwnedFd> {
        let channel = if self.id().is_job() { Channel::Data(stream) } else { Channel::Group(self.id(), stream) };
        self.call(rank, channel, (until, &|| false), host).map(|socket| socket.expect("nobody gives up"))
    }

    /// None if `gone` says so before it is open.
    fn call(
        &self,
        rank: Rank,
        channel: Channel,
        (until, gone): (Instant, &dyn Fn() -> bool),
        host: &mut dyn Host,
    ) -> Result<Option<OwnedFd>> {
        let Office { me, members, key, network, silence, .. } = &*self.office;
        let claim = Claim { from: *me, to: rank, channel };
        let stop = || self.verdict().is_some() || gone();
        let call = Dial { key, claim, network, until, stop: &stop };
        let member = &members[rank as usize];
        let mut pause = Duration::from_millis(1);
        loop {
            let missed = match dial(&call, member.address, host)? {
                Ok(socket) => {
                    tcp::prepare(&socket, *silence)?;
                    return Ok(Some(socket));
                }
                Err(missed) => missed,
            };
            if let Some(verdict) = self.verdict() {
                return Err(verdict.error());
            }
            if gone() {
                return Ok(None);
            }
            if Instant::now() >= until || matches!(missed, Missed::Refused(_)) {
                let text = format!(
                    "rank {me} cannot open a link to rank {rank} ({member}) at {}: {missed}. Is a firewall between the two? \
                     ARX_IFACE and ARX_PORT_RANGE say which interface and ports are used. The group is closed",
                    member.address
                );
                return Err(self.settle(Report::Failed { text }, host)?.error());
            }
            socket::rest(&mut [], pause, host)?;
            pause = (pause * 2).min(PAUSE);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if !self.id().is_job() {
            self.leave(State::Finished);
            self.desk().dismiss(self.id());
        }
    }
}

impl Office {
    fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.desk.close();
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.close();
    }
}
