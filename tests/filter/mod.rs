//! What the kernel lets a thread do: a seccomp filter, as containers have them on all.

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// From now on this thread may not read the memory of processes.
pub fn refuse_reading() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(equal, 0, 1, libc::SYS_process_vm_readv as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, REFUSE),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `program` and what it points to live until the kernel has copied them.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "seccomp filters: {}", std::io::Error::last_os_error());
}
