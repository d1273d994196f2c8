//! Which ranks may be able to share memory: those that run on one kernel, in the same namespaces, as the same user.
//! Whether they really can is found out by trying.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::admission;
use crate::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity([u64; 5]);

impl Identity {
    /// This thread's: the kernel's boot, the namespaces in which the job's unix socket and process ids mean something, and
    /// the user.
    pub fn mine() -> Result<Identity> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().and_then(|text| parse(text.trim()));
        let [high, low] = match boot {
            Some(boot) => boot,
            // Unknown: then like nobody else.
            None => {
                let nonce = admission::nonce()?;
                [0, 8].map(|at| u64::from_le_bytes(nonce[at..at + 8].try_into().expect("eight bytes")))
            }
        };
        let namespace = |kind: &str| fs::metadata(format!("/proc/thread-self/ns/{kind}")).map_or(0, |meta| meta.ino());
        let user = rustix::process::geteuid().as_raw();
        Ok(Identity([high, low, namespace("net"), namespace("pid"), u64::from(user)]))
    }

    pub fn of(words: [u64; 5]) -> Identity {
        Identity(words)
    }

    pub fn words(&self) -> &[u64; 5] {
        &self.0
    }
}

/// `4d1b2c6e-…`, as two words.
fn parse(boot: &str) -> Option<[u64; 2]> {
    let digits: String = boot.chars().filter(|c| *c != '-').collect();
    let word = |range| u64::from_str_radix(digits.get(range)?, 16).ok();
    (digits.len() == 32).then_some(())?;
    Some([word(0..16)?, word(16..32)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_like_itself() {
        assert_eq!(Identity::mine().expect("always"), Identity::mine().expect("always"));
        assert_eq!(parse("00000000-0000-0001-8000-000000000002"), Some([1, 1 << 63 | 2]));
        assert_eq!(parse("00000000-0000-0001-8000"), None);
        assert_eq!(parse("x0000000-0000-0001-8000-000000000002"), None);
    }
}
