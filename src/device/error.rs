//! What goes wrong with a GPU, in words.

use super::Plan;
use super::choice::Fusion;

/// Why no GPU, or not this one, can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The program was built without the feature `cuda`.
    #[error("this program was built without GPU support: build it with `--features cuda`")]
    NotBuilt,
    /// There is no driver library.
    #[error(
        "there is no NVIDIA driver: libcuda.so was not found or does not load (install the driver, 580 or newer, or add \
         its folder to LD_LIBRARY_PATH)"
    )]
    NoDriver,
    /// A library of the driver's name is something else.
    #[error(
        "libcuda.so was found, but is no NVIDIA driver: it has no function `{missing}` (is another library of that name \
         on LD_LIBRARY_PATH? the right one comes with driver 580 or newer)"
    )]
    NotADriver {
        /// A function that every driver has.
        missing: &'static str,
    },
    /// The driver is older than the kernels.
    #[error(
        "the NVIDIA driver is for CUDA {}.{}, but {}.{} is needed: install driver 580 or newer", .found / 1000,
        .found % 1000 / 10, .needed / 1000, .needed % 1000 / 10
    )]
    OldDriver {
        /// The version that it is for: 1000 · major + 10 · minor.
        found: i32,
        /// The least that will do.
        needed: i32,
    },
    /// The driver is there, but refuses to start.
    #[error("the NVIDIA driver does not start: {message}")]
    DriverFails {
        /// Its own message.
        message: String,
    },
    /// The driver has started, but does not tell what there is.
    #[error("the NVIDIA driver does not describe its GPUs: {message}")]
    NoAnswer {
        /// Its own message.
        message: String,
    },
    /// The driver knows no device.
    #[error("the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES set?)")]
    NoDevice,
    /// There are fewer devices.
    #[error("there is no GPU number {ordinal}: there are {count}, counted from 0")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device cannot run any of the code that was built.
    #[error(
        "{name} has compute capability {}.{}, but this program's kernels need {}.{} or more: use --device cpu", .found.0,
        .found.1, .needed.0, .needed.1
    )]
    OldDevice {
        /// The device.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
        /// The least that will do.
        needed: (i32, i32),
    },
    /// The device has no matrix instructions of warpgroups.
    #[error(
        "{name} has compute capability {}.{}, but kernels by wgmma run on 9.0 alone: use --kernels mma", .found.0,
        .found.1
    )]
    NoWgmma {
        /// The device.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
    },
    /// The program has no kernels that use them.
    #[error(
        "this program was built without kernels by wgmma: build it with 90a in SETRANK_CUDA_ARCHS, or use --kernels mma"
    )]
    WgmmaNotBuilt,
    /// They are for GPUs, and none computes.
    #[error("kernels by wgmma run on a GPU: use --device cuda, or --kernels mma")]
    WgmmaOnCpu,
    /// They fuse attention, and less was asked for.
    #[error("kernels by wgmma fuse attention: use --fuse attention or all, or --kernels mma")]
    WgmmaUnfused,
    /// Graphs are a matter of GPUs, and none computes.
    #[error("graphs are of a GPU's launches: use --device cuda, or --graphs=false")]
    GraphsOnCpu,
    /// How much kernels fuse is a matter of GPUs, and none computes.
    #[error("only a GPU's kernels are fused: use --device cuda, or --fuse all")]
    FuseOnCpu,
}

/// What went wrong on a GPU.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// It cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A call of the driver failed.
    #[error("{action} on GPU {ordinal} failed: {message}")]
    Driver {
        /// What was tried: "copying 12 bytes".
        action: String,
        /// The device.
        ordinal: usize,
        /// The driver's name for the error and its text.
        message: String,
    },
    /// The device's memory does not suffice.
    #[error(
        "{what} would take {} of GPU memory in one piece, but of the {} of GPU {ordinal} {} are free: end what else uses \
         the GPU, or use a smaller model or --device cpu", Bytes(*.needed), Bytes(*.total), Bytes(*.free)
    )]
    OutOfMemory {
        /// What was to be stored.
        what: String,
        /// The device.
        ordinal: usize,
        /// Bytes asked for.
        needed: usize,
        /// Bytes free.
        free: usize,
        /// Bytes that the device has.
        total: usize,
    },
    /// The device's memory does not suffice for a batch.
    #[error(
        "a batch of {documents} documents in {sets} set(s) needs {} of GPU memory, but {} of {} are free: use {}",
        Bytes(*.needed), Bytes(*.free), Bytes(*.total), instead(*.possible, *.fuse)
    )]
    BatchTooLarge {
        /// Documents of the batch.
        documents: usize,
        /// Its sets.
        sets: usize,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes free.
        free: usize,
        /// Bytes that the device has.
        total: usize,
        /// Documents of a batch that would fit, where the batch can be made smaller.
        possible: Option<usize>,
        /// How much kernels fuse: less takes more memory.
        fuse: Fusion,
    },
    /// An arena is too small for what was to be put into it.
    #[error(
        "{what} needs {needed} more bytes, but {free} of the arena's {total} are left: `Arena::bytes_for` sizes it"
    )]
    ArenaFull {
        /// What the arena holds.
        what: String,
        /// Bytes asked for.
        needed: usize,
        /// Bytes left.
        free: usize,
        /// Bytes that the arena has.
        total: usize,
    },
    /// The program has no code for the device, or the driver does not take it.
    #[error(
        "there is no code of kernel family `{family}` for {name} (compute capability {}.{}) in this program: build it \
         with SETRANK_CUDA_ARCHS={}{} ({message})", .capability.0, .capability.1, .capability.0, .capability.1
    )]
    NoCode {
        /// The family.
        family: &'static str,
        /// The device.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
        /// The driver's message.
        message: String,
    },
    /// The code is for a newer driver.
    #[error(
        "the NVIDIA driver does not take the code of kernel family `{family}`: update the driver, or build this program \
         with nvcc 13.0 ({message})"
    )]
    NewerCode {
        /// The family.
        family: &'static str,
        /// The driver's message.
        message: String,
    },
    /// A plan is beyond what the card allows.
    #[error("kernel {plan} cannot be launched: {reason}")]
    Plan {
        /// The plan.
        plan: Plan,
        /// What it exceeds.
        reason: String,
    },
    /// The driver refused a launch, or the kernel failed.
    #[error("launching {plan} for {shapes} failed: {message}")]
    Launch {
        /// The plan.
        plan: Plan,
        /// What the kernel was to work on.
        shapes: String,
        /// The driver's name for the error and its text.
        message: String,
    },
    /// What is no launch, no clearing and no copy on the device was asked for inside of a graph.
    #[error("{action} cannot be part of the graph of {graph}: do it before or after")]
    InGraph {
        /// What was asked for.
        action: String,
        /// What the graph is of.
        graph: &'static str,
    },
    /// The sizes of what was given do not fit together, or are beyond the kernels' limits.
    #[error("{0}")]
    Shapes(String),
}

/// Bytes as people read them.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub usize);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 as f64 / f64::from(1 << 20) {
            mib if mib < 1.0 => write!(f, "{} bytes", self.0),
            mib if mib < 1024.0 => write!(f, "{mib:.1} MiB"),
            mib => write!(f, "{:.2} GiB", mib / 1024.0),
        }
    }
}

/// What to do about a batch that is too large.
fn instead(possible: Option<usize>, fuse: Fusion) -> String {
    let more = if fuse == Fusion::None { "--fuse flash, which keeps no pairs of documents, " } else { "" };
    match possible {
        Some(documents) => format!("{more}--batch-docs {documents}, or a smaller model"),
        // The processor fuses all that it can.
        None if fuse != Fusion::All => format!("{more}--top-k to cut its sets, or a smaller model"),
        None => "--top-k to cut its sets, a smaller model, or --device cpu".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_to_do() {
        let old = Unavailable::OldDriver { found: 12_080, needed: 13_000 };
        assert_eq!(
            old.to_string(),
            "the NVIDIA driver is for CUDA 12.8, but 13.0 is needed: install driver 580 or newer"
        );
        let full = DeviceError::OutOfMemory {
            what: "the batch".into(),
            ordinal: 1,
            needed: 3 << 30,
            free: 5 << 20,
            total: 100,
        };
        let full = full.to_string();
        let large = |possible, fuse| {
            let (documents, sets, needed, free, total) = (40, 2, 9 << 20, 1 << 20, 1 << 30);
            DeviceError::BatchTooLarge { documents, sets, needed, free, total, possible, fuse }.to_string()
        };
        assert!(large(Some(30), Fusion::All).ends_with("use --batch-docs 30, or a smaller model"));
        assert!(large(None, Fusion::All).ends_with("or --device cpu"));
        let unfused = large(None, Fusion::None);
        assert!(unfused.contains("use --fuse flash") && !unfused.contains("cpu"), "{unfused}");
        assert!(full.contains("the batch would take 3.00 GiB of GPU memory"), "{full}");
        assert!(full.contains("of the 100 bytes of GPU 1 5.0 MiB are free"), "{full}");
    }
}
