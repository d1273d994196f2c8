//! A rank other than 0 while the job forms.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::connect;

use crate::arena::{Segment, handover};
use crate::error::{Error, Result, seconds};
use crate::wait::{Host, SLICE};

use super::frame::{Frame, lost};
use super::local::{Clock, Enter, Job, Joined, Terms, address, poll_slice, same_user, socket};

/// Takes the place that `job` names.
pub(super) fn newcomer(job: &Job, clock: &Clock, enter: Enter<'_>, host: &mut dyn Host) -> Result<Joined> {
    let hub = knock(job, clock, host)?;
    if !same_user(&hub) {
        return Err(Error::Auth(format!("the socket of job '{}' belongs to another user", job.id)));
    }
    let hello = Frame::Hello { rank: job.rank, world: job.world }.encode();
    handover::send(&hub, &hello, None).map_err(|_| gone(job))?;
    let joined = take_seat(job, &hub, clock, enter, host);
    if matches!(joined, Err(Error::Interrupted)) {
        let why = format!("rank {} was interrupted while the group was forming", job.rank);
        // If rank 0 is gone there is nobody to tell.
        let _ = handover::send(&hub, &Frame::Failed(why).encode(), None);
    }
    joined
}

fn take_seat(job: &Job, hub: &OwnedFd, clock: &Clock, enter: Enter<'_>, host: &mut dyn Host) -> Result<Joined> {
    let (Frame::Welcome { layout, settings }, Some(fd)) = hear(job, hub, clock, host)? else {
        return Err(Error::Init("rank 0 speaks another version of arx".into()));
    };
    if layout.world != job.world as usize {
        return Err(Error::Auth("rank 0 sent the memory of another job".into()));
    }
    let segment = Arc::new(Segment::adopt(fd.as_fd(), layout.total())?);
    enter(&segment, &layout);
    handover::send(hub, &Frame::Ready.encode(), None).map_err(|_| gone(job))?;
    let (Frame::Go, _) = hear(job, hub, clock, host)? else {
        return Err(Error::Init("rank 0 speaks another version of arx".into()));
    };
    let terms = Terms { layout, settings };
    Ok(Joined { segment, terms, listener: None })
}

/// Connects to rank 0 as soon as it listens.
fn knock(job: &Job, clock: &Clock, host: &mut dyn Host) -> Result<OwnedFd> {
    let name = address(job)?;
    let mut pause = Duration::from_millis(1);
    loop {
        let hub = socket()?;
        match connect(&hub, &name) {
            Ok(()) => return Ok(hub),
            Err(Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(Error::os("cannot connect to rank 0", e)),
        }
        if clock.over() {
            return Err(Error::Rendezvous(format!(
                "rank {} of {} waited {} for rank 0 of job '{}', which never opened its socket. Is rank 0 running, on this \
                 host and in the same network namespace, with the same ARX_JOB_ID?",
                job.rank,
                job.world,
                seconds(clock.limit),
                job.id
            )));
        }
        poll_slice(&[], pause, host)?;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Rank 0's next frame.
fn hear(job: &Job, hub: &OwnedFd, clock: &Clock, host: &mut dyn Host) -> Result<(Frame, Option<OwnedFd>)> {
    // Rank 0 gives up at its own time-out and says whom it missed, which is worth waiting a little longer for.
    while clock.from.elapsed() < clock.limit + Duration::from_secs(1) {
        if !poll_slice(&[hub], SLICE, host)?[0] {
            continue;
        }
        let (bytes, fd) = match handover::receive(hub) {
            Err(Errno::AGAIN) => continue,
            Err(_) => return Err(gone(job)),
            Ok(got) => got,
        };
        return match Frame::decode(&bytes) {
            None => Err(gone(job)),
            Some(Frame::Refused(why)) => Err(Error::Init(why)),
            Some(Frame::Failed(why)) => Err(Error::Rendezvous(why)),
            Some(Frame::Lost(ranks)) => Err(Error::PeerLost { text: lost(&ranks, job.world), ranks }),
            Some(frame) => Ok((frame, fd)),
        };
    }
    Err(Error::Rendezvous(format!(
        "rank {} of {} reached rank 0 of job '{}' but waited {} in vain for the group to form",
        job.rank,
        job.world,
        job.id,
        seconds(clock.limit)
    )))
}

fn gone(job: &Job) -> Error {
    Error::PeerLost { ranks: vec![0], text: lost(&[0], job.world) }
}
