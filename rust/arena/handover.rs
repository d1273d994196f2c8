//! Frames over a local socket, one of which may carry a descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Longest frame, in bytes.
pub const FRAME: usize = 2048;

/// Sends one frame, and `fd` with it.
pub fn send(socket: impl AsFd, frame: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            done => return done.map(|_| ()),
        }
    }
}

/// Receives one frame; an empty one means that the other side is gone. Waits unless the socket is non-blocking.
pub fn receive(socket: impl AsFd) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut frame = vec![0; FRAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut frame)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    frame.truncate(got.bytes);
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    };
    let fd = control.drain().filter_map(rights).flatten().next();
    Ok((frame, fd))
}
