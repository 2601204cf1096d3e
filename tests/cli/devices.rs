//! `setrank info --devices` and `--device`, through the command line: without a driver, and on the mock driver.

use serde_json::Value;

use crate::common::{Folder, contains};

#[test]
fn devices_are_listed_and_auto_says_why() {
    let folder = Folder::new();
    contains(&folder.ok("info --devices"), &["cpu: ", "core(s)", "auto: cpu: "]);
    let report: Value = serde_json::from_str(&folder.ok("info --devices --json")).unwrap();
    assert_eq!(report["auto"]["device"], "cpu");
    assert_ne!(report["auto"]["reason"], "");
    assert!(report["gpus"].is_array() && report["cpu"]["cores"].as_u64() > Some(0));
    for usage in ["info", "info --check", "info --devices data.sets"] {
        assert_eq!(folder.run(usage).status.code(), Some(2), "{usage}");
    }
}

#[test]
fn training_says_which_device_it_takes() {
    let folder = Folder::new();
    folder.file("train.txt", crate::common::letor(6, 1));
    folder.file("valid.txt", crate::common::letor(3, 2));
    contains(&folder.train("model", "--device auto"), &["device: CPU ("]);
    assert!(!folder.train("model2", "--device cpu").contains("device:"));
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_build_without_gpus_says_so() {
    let folder = Folder::new();
    let parts = ["built without GPU support", "--features cuda"];
    contains(&folder.ok("info --devices"), &parts);
    contains(&folder.fails("info --devices --check"), &parts);
}

#[cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]
mod mock {
    use std::path::Path;
    use std::process::Command;

    use setrank_emulator::driver;

    use super::*;

    fn on(folder: &Folder, device: &str, arguments: &str) -> (Option<i32>, String, String) {
        with(folder, driver::directory(), device, arguments)
    }

    /// With the libcuda.so of a folder.
    fn with(
        folder: &Folder,
        libraries: &Path,
        device: &str,
        arguments: &str,
    ) -> (Option<i32>, String, String) {
        let output = folder
            .command(arguments)
            .env("LD_LIBRARY_PATH", libraries)
            .env("SETRANK_MOCK_DEVICE", device)
            .output()
            .unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), out, err)
    }

    #[test]
    fn a_wrong_result_is_told() {
        let folder = Folder::new();
        let device = "cc=9.0,sums=hopper,workers=2,launch-lost-at=1";
        let (code, out, err) = on(&folder, device, "info --devices --check");
        assert_eq!(code, Some(1), "{out}");
        contains(
            &out,
            &[": WRONG (largest error inf, allowed ", "cuda:0: attention, forward, wgmma, head width 32"],
        );
        assert!(out.lines().filter(|line| line.contains(": WRONG")).count() == 1, "{out}");
        contains(&err, &["1 result(s) are not what the CPU computes"]);
    }

    #[test]
    fn kernels_are_checked_where_they_run() {
        let folder = Folder::new();
        let device = "cc=8.9,workers=2,sums=ampere";
        let (_, out, _) = on(&folder, device, "info --devices");
        contains(&out, &["cuda:0: ", "compute capability 8.9", "auto: cuda: Mock L4"]);
        let (code, out, err) = on(&folder, device, "info --devices --check");
        assert_eq!(code, Some(0), "{err}");
        assert!(!out.contains(": WRONG"), "{out}");
        // Where one fails, the other is checked nevertheless; its driver does what is queued at random.
        let device = "cc=8.0,workers=2,streams=random,devices=2,launch-fails-at=1";
        let (code, out, err) = on(&folder, device, "info --devices --check --json");
        assert_eq!(code, Some(1));
        contains(&err, &["1 GPU(s) could not be checked"]);
        assert!(!err.contains("0 result(s)"), "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let failures = report["failures"].as_array().unwrap();
        assert!(failures.len() == 1 && failures[0]["device"] == "cuda:0", "{failures:?}");
        contains(failures[0]["reason"].as_str().unwrap(), &["CUDA_ERROR_LAUNCH_FAILED"]);
        let checks = report["checks"].as_array().unwrap();
        assert!(checks.iter().all(|check| check["right"] == true && check["device"] == "cuda:1"), "{out}");
        let results: Vec<&str> = checks.iter().filter_map(|check| check["what"].as_str()).collect();
        for what in [
            "attention, forward, head width 32, dropout 0, documents: heads",
            "attention, backward, head width 64, dropout 0.2, documents to points: gradient of q",
        ] {
            assert!(results.contains(&what), "{results:?}");
        }
        // Of 9.0 alone there is nothing elsewhere.
        assert!(!results.iter().any(|what| what.contains("wgmma")), "{results:?}");
    }

    #[test]
    fn a_library_that_is_no_driver_is_named() {
        let folder = Folder::new();
        let version = "int cuDriverGetVersion(int *version) { return *version = 13000, 0; }";
        for (source, missing) in [("int other;", "`cuDriverGetVersion`"), (version, "`cuGetErrorName`")] {
            let source = folder.file("library.c", source);
            let library = folder.path().join("libcuda.so");
            let compiled =
                Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status();
            assert!(compiled.unwrap().success());
            let parts = ["is no NVIDIA driver", missing, "LD_LIBRARY_PATH"];
            let (code, out, err) = with(&folder, folder.path(), "", "info --devices");
            assert_eq!(code, Some(0), "{err}");
            contains(&out, &parts);
            let (code, _, err) = with(&folder, folder.path(), "", "info --devices --check");
            assert_eq!(code, Some(1));
            contains(&err, &parts);
            assert!(!err.contains("panicked"), "{err}");
        }
        // No library at all: another one may be found.
        folder.file("libcuda.so", "text");
        folder.file("libcuda.so.1", "text");
        let (code, _, err) = with(&folder, folder.path(), "", "info --devices");
        assert_eq!(code, Some(0), "{err}");
        assert!(!err.contains("panicked"), "{err}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let folder = Folder::new();
        for (device, parts) in
            [("driver=12080", &["CUDA 12.8", "13.0 is needed"][..]), ("devices=0", &["finds no GPU"])]
        {
            let (code, out, _) = on(&folder, device, "info --devices");
            assert_eq!(code, Some(0));
            contains(&out, parts);
            let (code, _, err) = on(&folder, device, "info --devices --check");
            assert_eq!(code, Some(1));
            contains(&err, parts);
        }
        let (code, out, _) = on(&folder, "cc=7.5", "info --devices");
        assert_eq!(code, Some(0));
        contains(&out, &["cannot be used", "8.0 or more"]);
        for (device, parts) in [
            ("cc=7.5", &["8.0 or more"][..]),
            ("launch-fails-at=1", &["cuda:0: not checked: launching", "CUDA_ERROR_LAUNCH_FAILED"]),
            ("out-of-memory-at=1", &["GPU memory", "are free"]),
        ] {
            let (code, _, err) = on(&folder, device, "info --devices --check");
            assert_eq!(code, Some(1), "{device}: {err}");
            contains(&err, parts);
            assert!(!err.contains("panicked"), "{device}: {err}");
        }
    }
}
