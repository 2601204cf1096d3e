//! What the machine is, and what memory it has: from `/proc` where there is one.

use std::fs::read_to_string;

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

/// Makes [`peak_rss`] begin anew from what the process holds now. Where the system cannot, the peak stays that of the
/// whole process, which is no less.
pub fn restart_peak_rss() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Memory that can still be had without swapping, in bytes; `None` where the system does not tell.
pub fn available_memory() -> Option<u64> {
    kilobytes("/proc/meminfo", "MemAvailable:")
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
        restart_peak_rss();
        assert!(peak_rss().unwrap() <= peak);
        assert!(available_memory().unwrap() > 1 << 20);
        assert!(!cpu_name().is_empty() && cores() > 0);
    }
}
