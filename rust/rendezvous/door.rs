//! Rank 0's socket after the job has formed.

use std::os::fd::OwnedFd;

use rustix::net::{SocketFlags, accept_with};

use crate::arena::handover;
use crate::health::{Door, Roster};

use super::frame::Frame;

/// Visitors who have not spoken yet; one more sends the oldest away.
const WAITING: usize = 16;

/// Tells whoever knocks that the job is complete.
#[derive(Debug)]
pub struct LateDoor {
    listener: OwnedFd,
    visitors: Vec<OwnedFd>,
    roster: Roster,
    job: String,
}

impl LateDoor {
    pub fn new(listener: OwnedFd, roster: Roster, job: String) -> LateDoor {
        LateDoor { listener, visitors: Vec::new(), roster, job }
    }
}

impl Door for LateDoor {
    fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    fn admit(&mut self) -> bool {
        let Ok(visitor) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return false;
        };
        if self.visitors.len() >= WAITING {
            self.visitors.remove(0);
        }
        self.visitors.push(visitor);
        true
    }

    fn visitors(&self) -> &[OwnedFd] {
        &self.visitors
    }

    fn answer(&mut self, visitor: usize) {
        let socket = self.visitors.remove(visitor);
        let said = handover::receive(&socket).ok().and_then(|(frame, _)| Frame::decode(&frame));
        if let Some(Frame::Hello { rank, .. }) = said {
            let why = taken(&self.job, rank, &self.roster);
            // The visitor may have left meanwhile; then there is nobody to tell.
            let _ = handover::send(&socket, &Frame::Refused(why).encode(), None);
        }
    }
}

fn taken(job: &str, rank: u32, roster: &Roster) -> String {
    let world = roster.world();
    if rank as usize >= world {
        return format!("job '{job}' has formed already, with {world} ranks; there is no rank {rank} in it");
    }
    format!(
        "rank {rank} of job '{job}' is already taken by process {}. Did a child process inherit the environment of a rank, \
         or was the script started twice with one ARX_JOB_ID?",
        roster.pid(rank)
    )
}
