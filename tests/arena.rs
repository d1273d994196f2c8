//! The shared memory itself: nobody can pull it from under the others, and nothing but a sealed memfd of the right size is
//! taken for it.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use arx::arena::{Segment, handover};
use arx::error::Error;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const LEN: usize = 1 << 20;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

fn read(segment: &Segment, at: usize, len: usize) -> Vec<u8> {
    segment.cells(at, len).iter().map(Cell::get).collect()
}

fn write(segment: &Segment, at: usize, bytes: &[u8]) {
    segment.cells(at, bytes.len()).iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
}

#[test]
fn the_memory_cannot_be_resized() {
    let (segment, fd) = Segment::create(LEN).expect("memory");
    for len in [0, LEN - 1, LEN + 1] {
        assert_eq!(ftruncate(&fd, len as u64), Err(Errno::PERM));
    }
    assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM), "seals are final");
    assert_eq!(segment.len(), LEN);
    write(&segment, LEN - 1, &[9]);
    assert_eq!(read(&segment, LEN - 1, 1), [9]);
}

#[test]
fn both_mappings_are_the_same_memory() {
    let (mine, fd) = Segment::create(LEN).expect("memory");
    let theirs = Segment::adopt(fd.as_fd(), LEN).expect("the same");
    write(&mine, 4000, b"from here");
    assert_eq!(read(&theirs, 4000, 9), b"from here");
    write(&theirs, 0, b"and back");
    assert_eq!(read(&mine, 0, 8), b"and back");
}

#[test]
fn memory_of_another_size_is_refused() {
    let (_segment, fd) = Segment::create(LEN).expect("memory");
    for len in [LEN - 4096, LEN + 4096] {
        let error = Segment::adopt(fd.as_fd(), len).expect_err("another size");
        assert!(matches!(error, Error::Auth(_)), "{error:?}");
        assert!(error.to_string().contains(&format!("{LEN} bytes")), "{error}");
        assert!(error.to_string().contains(&format!("{len} bytes")), "{error}");
    }
}

#[test]
fn memory_that_can_still_be_resized_is_refused() {
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::SHRINK | SealFlags::GROW] {
        let fd = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, LEN as u64).expect("size");
        fcntl_add_seals(&fd, seals).expect("seals");
        let error = Segment::adopt(fd.as_fd(), LEN).expect_err("not sealed");
        assert!(matches!(error, Error::Auth(_)), "{error:?}");
    }
}

#[test]
fn a_file_is_not_taken_for_memory() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(path).expect("this test");
    let len = file.metadata().expect("this test").len() as usize;
    let error = Segment::adopt(file.as_fd(), len).expect_err("a plain file");
    assert!(error.to_string().contains("no memfd"), "{error}");
}

#[test]
#[should_panic(expected = "outside the shared segment")]
fn nobody_looks_past_the_end() {
    let (segment, _fd) = Segment::create(LEN).expect("memory");
    segment.cells(LEN - 8, 9);
}

#[test]
#[should_panic(expected = "outside the shared segment")]
fn an_offset_that_wraps_is_outside_too() {
    let (segment, _fd) = Segment::create(LEN).expect("memory");
    segment.cells(usize::MAX, 2);
}

#[test]
fn a_descriptor_travels_with_its_frame() {
    let (here, there) = pair();
    let (mine, fd) = Segment::create(LEN).expect("memory");
    handover::send(&here, b"the memory", Some(fd.as_fd())).expect("sent");
    handover::send(&here, b"nothing else", None).expect("sent");
    write(&mine, 100, b"already here");
    drop((mine, fd));
    let (frame, received) = handover::receive(&there).expect("received");
    assert_eq!(frame, b"the memory");
    let theirs = Segment::adopt(received.expect("with a descriptor").as_fd(), LEN).expect("memory");
    assert_eq!(read(&theirs, 100, 12), b"already here");
    let (frame, received) = handover::receive(&there).expect("received");
    assert_eq!(frame, b"nothing else");
    assert!(received.is_none());
}

#[test]
fn an_empty_frame_means_that_the_other_side_has_left() {
    let (here, there) = pair();
    handover::send(&here, b"last words", None).expect("sent");
    drop(here);
    assert_eq!(handover::receive(&there).expect("received").0, b"last words");
    let (frame, fd) = handover::receive(&there).expect("received");
    assert!(frame.is_empty() && fd.is_none());
    assert!(handover::send(&there, b"too late", None).is_err());
}
