//! What this machine has: cores that may be used, caches, memory. Read once, when a group forms.

use std::fs;

/// Cores in this thread's affinity mask.
pub fn cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        // More than 1,024 processors: the mask does not fit, and crowding is not the worry.
        Err(_) => (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect(),
    }
}

/// Cores that the control group allows at once, rounded up; 0 when it sets no limit.
pub fn quota() -> u64 {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let limits = ["", path].map(|p| fs::read_to_string(format!("/sys/fs/cgroup{p}/cpu.max")).unwrap_or_default());
    limits.iter().filter_map(|limit| parse_quota(limit)).min().unwrap_or(0)
}

fn parse_quota(limit: &str) -> Option<u64> {
    let mut words = limit.split_whitespace().map(|word| word.parse::<u64>());
    match (words.next(), words.next()) {
        (Some(Ok(quota)), Some(Ok(period))) if period > 0 => Some(quota.div_ceil(period)),
        _ => None,
    }
}

/// Bytes of one core's second-level cache.
pub fn second_level_cache() -> usize {
    let size = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
    parse_size(size.trim()).unwrap_or(1 << 20)
}

fn parse_size(size: &str) -> Option<usize> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<usize>().ok().map(|n| n * unit)
}

/// Bytes of memory of this machine.
pub fn memory() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_read_as_written() {
        assert_eq!(parse_quota("150000 100000\n"), Some(2));
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota(""), None);
        assert_eq!(parse_size("2048K"), Some(2 << 20));
        assert_eq!(parse_size("1M"), Some(1 << 20));
        assert_eq!(parse_size("odd"), None);
    }

    #[test]
    fn this_machine_has_something() {
        assert!(!cpus().is_empty());
        assert!(second_level_cache() > 0);
        assert!(memory() > 0);
    }
}
