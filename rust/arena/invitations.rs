//! How ranks of a host find memory that one of them has set aside for a few of them: a small table in the region of the
//! one, read by the others.
//!
//! ```text
//! host:   free slot ── where, for how many, then the key ──► taken
//! guests:                 each looks for the key and counts itself in; the last one frees the slot
//! ```
//! Everybody works out the same key by itself. Nobody waits here; who comes too early looks again.
//!
//! One process is the host of a table. What the memory is for is not known here.

use std::sync::{Arc, Mutex, PoisonError};

use super::Segment;
use crate::sync::{AtomicU64, Ordering};

/// Invitations that may be open at the same time.
const SLOTS: usize = 64;

const KEY: usize = 0;
const OFFSET: usize = 1;
const GUESTS: usize = 2;

/// On a line of its own, as those of other slots change meanwhile.
type Slot = [AtomicU64; 8];

/// The table of one rank. All zeros is an empty one.
#[derive(Debug)]
pub struct Invitations {
    segment: Arc<Segment>,
    offset: usize,
    /// Held while the host looks for a free slot, which several of its threads may.
    hosting: Mutex<()>,
}

impl Invitations {
    pub const BYTES: usize = SLOTS * size_of::<Slot>();

    pub fn new(segment: Arc<Segment>, offset: usize) -> Invitations {
        Invitations { segment, offset, hosting: Mutex::new(()) }
    }

    fn slots(&self) -> &[Slot] {
        self.segment.array(self.offset, SLOTS)
    }

    /// By the host: invites `guests`, at least one, to what lies at `offset`. False when the table is full. No key is 0.
    pub fn invite(&self, key: u64, offset: usize, guests: usize) -> bool {
        let _hosting = self.hosting.lock().unwrap_or_else(PoisonError::into_inner);
        // acquires: the last guest's look at the slot
        let Some(slot) = self.slots().iter().find(|slot| slot[KEY].load(Ordering::Acquire) == 0) else { return false };
        slot[OFFSET].store(offset as u64, Ordering::Relaxed);
        slot[GUESTS].store(guests as u64, Ordering::Relaxed);
        // publishes: the rest of the slot, and what the host has written at `offset`
        slot[KEY].store(key, Ordering::Release);
        true
    }

    /// By a guest, once: where what `key` stands for lies, if the host has said so.
    pub fn accept(&self, key: u64) -> Option<usize> {
        // acquires: what `invite` published
        let slot = self.slots().iter().find(|slot| slot[KEY].load(Ordering::Acquire) == key)?;
        let offset = slot[OFFSET].load(Ordering::Relaxed) as usize;
        // publishes to the last guest: this one's look at the slot
        if slot[GUESTS].fetch_sub(1, Ordering::AcqRel) == 1 {
            slot[KEY].store(0, Ordering::Release);
        }
        Some(offset)
    }

    /// By the host: the guests who have not come will never come.
    pub fn withdraw(&self, key: u64) {
        if let Some(slot) = self.slots().iter().find(|slot| slot[KEY].load(Ordering::Acquire) == key) {
            slot[KEY].store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Invitations {
        let (segment, _) = Segment::create(1 << 20).expect("memory");
        Invitations::new(Arc::new(segment), 4096)
    }

    #[test]
    fn every_guest_finds_it_and_the_last_one_frees_the_slot() {
        let table = table();
        assert_eq!(table.accept(7), None, "too early");
        assert!(table.invite(7, 4096, 3) && table.invite(8, 8192, 1));
        for _ in 0..3 {
            assert_eq!(table.accept(7), Some(4096));
        }
        assert_eq!(table.accept(7), None);
        assert_eq!(table.accept(8), Some(8192));
    }

    #[test]
    fn a_full_table_has_room_again_when_guests_have_come_or_never_will() {
        let table = table();
        for key in 1..=SLOTS as u64 {
            assert!(table.invite(key, 64 * key as usize, 1));
        }
        assert!(!table.invite(99, 0, 1));
        assert_eq!(table.accept(5), Some(320));
        assert!(table.invite(99, 11, 1));
        table.withdraw(9);
        assert!(table.invite(100, 12, 1));
        assert_eq!((table.accept(99), table.accept(100), table.accept(9)), (Some(11), Some(12), None));
    }

    #[test]
    fn threads_that_invite_and_accept_at_once_never_see_another_offset() {
        let table = table();
        std::thread::scope(|scope| {
            for host in 0..2 {
                let table = &table;
                scope.spawn(move || {
                    for key in (1..2000).map(|k| 2 * k + host) {
                        while !table.invite(key, key as usize, 2) {
                            std::thread::yield_now();
                        }
                    }
                });
                for _guest in 0..2 {
                    scope.spawn(move || {
                        for key in (1..2000).map(|k| 2 * k + host) {
                            let offset = loop {
                                match table.accept(key) {
                                    Some(offset) => break offset,
                                    None => std::thread::yield_now(),
                                }
                            };
                            assert_eq!(offset, key as usize);
                        }
                    });
                }
            }
        });
    }
}
