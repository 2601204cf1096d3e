//! Warnings of the library, printed to stderr as the command line prints errors.

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.level() <= Level::Warn && metadata.target().starts_with("setrank")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let level = if record.level() == Level::Warn { "warning" } else { "error" };
            tell!("{level}: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Makes `log::warn!` of the library visible.
pub fn install() {
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
