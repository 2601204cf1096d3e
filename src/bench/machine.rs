//! What the machine is, and what memory it has: from `/proc` where there is one.

use std::fs::read_to_string;
use std::path::Path;

use crate::{Error, Result};

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The processor's name, or its architecture where the system does not tell.
pub fn cpu_name() -> String {
    let cpus = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

/// Processor cores that this program may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The most memory that this process has held at once since it began or [`restart_peak_rss`] was called, in bytes;
/// `None` where the system does not tell.
pub fn peak_rss() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM:")
}

/// Makes [`peak_rss`] begin anew from what the process needs now. Where the system cannot, the peak stays that of the
/// whole process, which is no less.
pub fn restart_peak_rss() {
    // What was freed before may still be the process's, and would be counted.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes nothing but the padding to leave, and gives only free memory back.
    unsafe {
        libc::malloc_trim(0);
    }
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Memory that can still be had without swapping, in bytes: what the machine has and, under Linux's control groups
/// (version 2), what the limits leave; `None` where the system does not tell.
pub fn available_memory() -> Option<u64> {
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let of_machine = kilobytes("/proc/meminfo", "MemAvailable:");
    of_machine.into_iter().chain(left_to_group(Path::new(CGROUPS), own)).min()
}

/// What the limits of the group `own` below `root`, and of those around it, leave at least, in bytes; `None` without a
/// limit.
fn left_to_group(root: &Path, own: &str) -> Option<u64> {
    let folder = root.join(own);
    folder.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(left_by_limit).min()
}

/// What the limit of one group leaves.
fn left_by_limit(folder: &Path) -> Option<u64> {
    let number = |file| read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    // Without a limit the file says `max`.
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    // Pages of files that nobody has used for a while are given up for the asking.
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(idle.unwrap_or(0))))
}

/// Refuses `what`, which needs about `needed` bytes, where fewer are `available`, and says what to do.
pub(super) fn check_memory(available: Option<u64>, needed: f64, what: &str, advice: &str) -> Result<()> {
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    match available.map(|available| available as f64) {
        Some(available) if needed > available => Err(Error::config(format!(
            "{what} needs about {:.1} GiB, but {:.1} GiB are free: {advice}",
            gib(needed),
            gib(available)
        ))),
        _ => Ok(()),
    }
}

/// The value, in bytes, of a line such as `VmHWM:    1234 kB`.
fn kilobytes(file: &str, key: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let filled = std::hint::black_box(vec![1u8; 64 << 20]);
        let peak = peak_rss().unwrap();
        assert!(peak >= filled.len() as u64 && peak < 1 << 45, "{peak}");
        drop(filled);
        assert!(available_memory().unwrap() > 1 << 20);
        assert!(!cpu_name().is_empty() && cores() > 0);
    }

    #[test]
    fn the_tightest_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |folder: &str, files: [&str; 3]| {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in ["memory.max", "memory.current", "memory.stat"].into_iter().zip(files) {
                std::fs::write(folder.join(name), text).unwrap();
            }
        };
        assert_eq!(left_to_group(root.path(), ""), None);
        group("", ["max\n", "900\n", ""]);
        assert_eq!(left_to_group(root.path(), "a/b"), None);
        group("a", ["1000\n", "700\n", "anon 5\ninactive_file 100\n"]);
        assert_eq!(left_to_group(root.path(), "a/b"), Some(400));
        group("a/b", ["300\n", "400\n", ""]);
        assert_eq!(
            (left_to_group(root.path(), "a/b"), left_to_group(root.path(), "a")),
            (Some(0), Some(400))
        );
    }
}
