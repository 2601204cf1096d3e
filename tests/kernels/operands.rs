//! What launchers refuse of their buffers, and what is done with buffers without a kernel.

use half::bf16;
use setrank::device::{Buffer, DeviceError, Gpu, Operands, Uploads};
use setrank_emulator::driver::{self, Configuration};

fn on<R>(configuration: Configuration, run: impl FnOnce() -> R) -> R {
    driver::with(&configuration, |_| run()).unwrap()
}

fn message(result: Result<(), DeviceError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn what_is_written_overlaps_nothing() {
    on(Configuration::default(), || {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("numbers", 1024).unwrap();
        let whole = arena.take::<f32>(16).unwrap();
        let other = arena.take::<bf16>(16).unwrap();
        let [first, second] = [0..8, 8..16].map(|range| whole.part(range).unwrap());
        let overlaps = |result| message(result).contains("x and y share memory, and one of them is written");

        let mut operands = Operands::new(&gpu, "a launch");
        operands.reads("x", &whole, 16).unwrap();
        operands.reads("x again", &whole, 16).unwrap();
        operands.writes("other", &other, 16).unwrap();
        let mut operands = Operands::new(&gpu, "a launch");
        operands.reads("y", &whole, 16).unwrap();
        assert!(overlaps(operands.writes("x", &second, 8)));
        assert!(overlaps(operands.updates("x", &second, 8)));
        assert!(overlaps(operands.scratch("x", &first, 4)));
        let mut operands = Operands::new(&gpu, "a launch");
        operands.writes("y", &first, 8).unwrap();
        operands.writes("beside it", &second, 8).unwrap();
        assert!(overlaps(operands.reads("x", &first, 8)));
        // Nothing shares memory with a buffer of no value.
        operands.reads("nothing", &whole.part(4..4).unwrap(), 0).unwrap();
    });
}

#[test]
fn lengths_and_devices_are_checked() {
    on(Configuration { devices: 2, ..Configuration::default() }, || {
        let gpu = Gpu::new(0).unwrap();
        let buffer = gpu.arena("numbers", 256).unwrap().take::<f32>(16).unwrap();
        let theirs = Gpu::new(1).unwrap().arena("numbers", 256).unwrap().take::<f32>(16).unwrap();
        let mut operands = Operands::new(&gpu, "a launch");
        assert_eq!(message(operands.reads("x", &buffer, 15)), "a launch: x has 16 values, not 15");
        assert_eq!(message(operands.scratch("x", &buffer, 17)), "a launch: x has 16 values, not 17 or more");
        operands.scratch("x", &buffer, 15).unwrap();
        for refused in [
            operands.reads("x", &theirs, 16),
            operands.writes("x", &theirs, 16),
            operands.scratch("x", &theirs, 16),
        ] {
            assert!(message(refused).starts_with("a launch: x: a buffer of another GPU"));
        }
    });
}

/// Tables of a package that never went to the GPU are whatever was there: no launch takes them.
#[test]
fn what_was_not_sent_is_refused() {
    on(Configuration::default(), || {
        let gpu = Gpu::new(0).unwrap();
        let mut uploads = Uploads::default();
        let room = || gpu.arena("a package", 256).unwrap().room(256).unwrap();
        let reads = |table: &Buffer<i32>| Operands::new(&gpu, "a launch").reads("a table", table, 4);
        let refusal = "a launch: a table is of a package that was not sent to the GPU";
        let mut kept = None;
        let failed: Result<(), DeviceError> = uploads.send(&gpu, room(), |package| {
            let table = package.put(&[1, 2, 3, 4])?;
            assert_eq!(message(reads(&table)), refusal);
            kept = Some(table);
            Err(DeviceError::Shapes("as the test wants it".into()))
        });
        assert_eq!(message(failed), "as the test wants it");
        let kept = kept.unwrap();
        assert_eq!(message(reads(&kept)), refusal);
        assert_eq!(
            message(Operands::new(&gpu, "a launch").reads("a table", &kept.part(0..3).unwrap(), 3)),
            refusal
        );
        let sent = uploads.send(&gpu, room(), |package| package.put(&[1, 2, 3, 4])).unwrap();
        reads(&sent).unwrap();
        assert_eq!(gpu.download(&sent).unwrap(), [1, 2, 3, 4]);
    });
}

#[test]
fn buffers_are_cleared_and_copied() {
    on(Configuration { devices: 2, ..Configuration::default() }, || {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("numbers", 1024).unwrap();
        let mut a = arena.take::<f32>(8).unwrap();
        let mut b = arena.take::<f32>(4).unwrap();
        gpu.upload(&mut a, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        gpu.upload(&mut b, &[9.0; 4]).unwrap();
        gpu.zero(&mut a.part(4..7).unwrap()).unwrap();
        assert_eq!(gpu.download(&a).unwrap(), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 8.0]);
        gpu.copy(&mut b, &a.part(0..4).unwrap()).unwrap();
        assert_eq!(gpu.download(&b).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        gpu.zero(&mut a.part(0..0).unwrap()).unwrap();
        gpu.copy(&mut b.part(0..0).unwrap(), &a.part(0..0).unwrap()).unwrap();
        assert!(message(gpu.copy(&mut b, &a)).contains("the target has 4 values, not 8"));
        assert!(
            message(gpu.copy(&mut a.part(0..4).unwrap(), &a.part(0..4).unwrap())).contains("share memory")
        );
        let mut theirs = Gpu::new(1).unwrap().arena("numbers", 256).unwrap().take::<f32>(4).unwrap();
        assert!(message(gpu.zero(&mut theirs)).contains("another GPU"));
        assert!(message(gpu.copy(&mut theirs, &b)).contains("another GPU"));
    });
}
