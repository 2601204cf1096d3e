//! Launches of the test kernels (`tests/kernels`), which all take `TestArguments`.

use std::fs;
use std::path::PathBuf;

use setrank_emulator::emulate::{self, Config, Counters, Fault, Report};
use setrank_emulator::kernels::{Kernels, Sources};
use setrank_emulator::launch::{Buffer, Launch, Pointer, panels_map, tensor_map};

use crate::vectors::{InPanels, Matrix, SHARED_BYTES, Vector};

/// The path of a test kernel's source.
pub fn source(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name)
}

/// Compiles a source of test kernels.
pub fn compile(name: &str) -> Kernels {
    Sources::read(&[source(name)]).and_then(|sources| sources.compile()).unwrap_or_else(|e| panic!("{e}"))
}

/// A launch of one block: the input's words, room for words of output, the integers `a` and `b`.
pub fn launch(kernel: &str, threads: u32, input: &[u32], output_words: usize, a: i32, b: i32) -> Launch {
    let mut parameter = vec![0; 16];
    parameter.extend(a.to_ne_bytes());
    parameter.extend(b.to_ne_bytes());
    Launch {
        kernel: kernel.into(),
        grid: [1; 3],
        block: [threads, 1, 1],
        shared_bytes: 16 << 10,
        parameter,
        pointers: vec![Pointer { at: 0, buffer: 0, offset: 0 }, Pointer { at: 8, buffer: 1, offset: 0 }],
        buffers: vec![
            Buffer {
                name: "input".into(),
                bytes: input.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            },
            Buffer { name: "output".into(), bytes: vec![0; output_words * 4] },
        ],
    }
}

/// The launch of a vector.
pub fn launch_of(vector: &Vector) -> Launch {
    let Vector { kernel, blocks, threads, input, numbers: [a, b], output_words, .. } = vector;
    let mut launch = launch(kernel, *threads, input, *output_words, *a, *b);
    launch.grid = [*blocks, 1, 1];
    launch.shared_bytes = SHARED_BYTES;
    if let Some(Matrix { rows, columns, box_rows, panels }) = vector.matrix {
        // TensorArguments: a tensor map of the input comes first, and the struct is filled up.
        let map = match panels {
            None => tensor_map([rows, columns], [box_rows, 64]),
            Some(InPanels { width, of_box, apart }) => {
                let strides = if apart { [rows * width, width] } else { [width, columns] };
                panels_map([columns / width, rows, width], strides, [of_box, box_rows, width as u32])
            }
        };
        let mut parameter: Vec<u8> = map.iter().flat_map(|word| word.to_ne_bytes()).collect();
        launch.pointers.iter_mut().for_each(|pointer| pointer.at += parameter.len());
        launch.pointers.push(Pointer { at: 0, buffer: 0, offset: 0 });
        parameter.append(&mut launch.parameter);
        parameter.resize(192, 0);
        launch.parameter = parameter;
    }
    launch
}

/// The words of the output.
pub fn output(launch: &Launch) -> Vec<u32> {
    launch.buffers[1]
        .bytes
        .chunks_exact(4)
        .map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap()))
        .collect()
}

/// Runs a copy of a launch and gives its output.
pub fn run(kernels: &Kernels, launch: &Launch, config: &Config) -> Result<Vec<u32>, Report> {
    let mut launch = launch.clone();
    emulate::run(kernels, &mut launch, config)?;
    Ok(output(&launch))
}

/// Runs a launch with every schedule, time of copies and seed, and checks its output each time.
pub fn check(kernels: &Kernels, launch: &Launch, expected: &[u32]) {
    for config in Config::matrix(&[1, 2, 3]) {
        match run(kernels, launch, &config) {
            Ok(words) => assert_eq!(words, expected, "{} with {config:?}", launch.kernel),
            Err(report) => panic!("{} with {config:?}: {report}", launch.kernel),
        }
    }
}

/// The counters of a launch.
pub fn count(kernels: &Kernels, launch: &Launch, config: Config) -> Counters {
    let mut launch = launch.clone();
    emulate::run(kernels, &mut launch, &config.counting()).unwrap_or_else(|report| panic!("{report}"))
}

/// A source of kernels that each do something wrong, which is to be reported at the lines that end in `// reported`.
pub struct Misuse {
    pub kernels: Kernels,
    name: &'static str,
    text: String,
}

impl Misuse {
    pub fn of(name: &'static str) -> Self {
        Misuse { kernels: compile(name), name, text: fs::read_to_string(source(name)).unwrap() }
    }

    /// The lines of a kernel that are marked as those of its report.
    pub fn marked_lines(&self, kernel: &str) -> Vec<usize> {
        let mut inside = false;
        let mut lines = Vec::new();
        for (i, line) in self.text.lines().enumerate() {
            if line.starts_with("KERNEL") {
                inside = line.contains(&format!(" {kernel}("));
            }
            if inside && line.ends_with("// reported") {
                lines.push(i + 1);
            }
        }
        assert!(!lines.is_empty(), "{kernel} marks no line");
        lines
    }

    pub fn check(&self, of: &Launch, report: &Report, fault: Fault, text: &str) {
        let what = format!("{}: {report}", of.kernel);
        assert_eq!(report.fault, fault, "{what}");
        assert!(report.text.contains(text), "no `{text}` in {what}");
        let name = self.name;
        let places: Vec<_> =
            self.marked_lines(&of.kernel).iter().map(|line| format!("kernels/{name}:{line}:")).collect();
        assert!(places.iter().any(|place| report.text.starts_with(place)), "not at {places:?}: {what}");
        assert!(report.text.contains(&format!("in kernel {}, block (0, 0, 0)", of.kernel)), "{what}");
    }

    /// Reported with every schedule and time of copies.
    pub fn always(&self, of: &Launch, fault: Fault, text: &str) {
        for config in Config::matrix(&[1, 2]) {
            match run(&self.kernels, of, &config) {
                Ok(_) => panic!("{}: nothing reported with {config:?}", of.kernel),
                Err(report) => self.check(of, &report, fault, text),
            }
        }
    }
}
