//! Runs pieces of PTX.

use setrank_emulator::launch::{Buffer, Launch, Pointer};
use setrank_emulator::ptx::{Coverage, Fault, FaultKind, Module, Options};

/// What a thread gets in `%rd1` to `%rd4`; their low bits stand in `%r1`…, `%rs1`…, and `%p1`… tell whether they are not 0.
pub type Inputs = [u64; 4];

pub const HEAD: &str = ".version 9.0\n.target sm_80\n.address_size 64\n";

/// A kernel `k` of one parameter, `p`: a pointer to inputs in `%rd14` and one to outputs in `%rd15`.
pub fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(\n.param .align 8 .b8 p[16]\n)\n{{
        .reg .pred %p<10>; .reg .b16 %rs<10>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
        ld.param.b64 %rd14, [p]; ld.param.b64 %rd15, [p+8];\n{body}\nret;\n}}\n"
    )
}

/// A launch of `k` with inputs and room for outputs.
pub fn launch(grid: u32, block: u32, input: Vec<u8>, output_bytes: usize) -> Launch {
    Launch {
        kernel: "k".to_owned(),
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
        parameter: vec![0; 16],
        pointers: vec![Pointer { at: 0, buffer: 0, offset: 0 }, Pointer { at: 8, buffer: 1, offset: 0 }],
        buffers: vec![
            Buffer { name: "input".to_owned(), bytes: input },
            Buffer { name: "output".to_owned(), bytes: vec![0xee; output_bytes] },
        ],
    }
}

pub fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

pub fn as_words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Runs `body` with these words as input; what it wrote to as many words of output as there are threads.
pub fn run_words(body: &str, grid: u32, block: u32, input: &[u32]) -> Result<(Vec<u32>, Coverage), Fault> {
    run_shared(body, grid, block, 0, input)
}

/// As `run_words`, with dynamic shared memory.
pub fn run_shared(
    body: &str,
    grid: u32,
    block: u32,
    shared_bytes: u32,
    input: &[u32],
) -> Result<(Vec<u32>, Coverage), Fault> {
    let module = Module::parse(&kernel(body)).unwrap_or_else(|error| panic!("{error}"));
    let mut launch = launch(grid, block, words(input.iter().copied()), (grid * block) as usize * 4);
    launch.shared_bytes = shared_bytes;
    let coverage = module.run(&mut launch, &Options { budget: 100_000, ..Options::default() })?;
    Ok((as_words(&launch.buffers[1].bytes), coverage))
}

/// As `run_words` for one block without input, for what does not fault.
pub fn outputs(body: &str, block: u32) -> Vec<u32> {
    match run_words(body, 1, block, &[]) {
        Ok((words, _)) => words,
        Err(fault) => panic!("{fault}"),
    }
}

/// The fault of a body: its kind, its line in the body from 1, its thread, its text.
pub fn fault(body: &str, block: u32) -> (FaultKind, u32, [u32; 3], String) {
    fault_of(run_shared(body, 1, block, 256, &[1, 2, 3, 4]))
}

pub fn fault_of(outcome: Result<(Vec<u32>, Coverage), Fault>) -> (FaultKind, u32, [u32; 3], String) {
    let fault = outcome.expect_err("a fault");
    let place = fault.place.clone().unwrap_or_else(|| panic!("{fault}"));
    let first = kernel("@").lines().position(|line| line == "@").unwrap() as u32;
    (fault.kind, place.line - first, place.thread, fault.to_string())
}

/// Ends a body: stores `%r9` as the thread's output.
pub const STORE: &str = "mov.u32 %r18, %tid.x; mul.wide.u32 %rd18, %r18, 4; add.s64 %rd19, %rd15, %rd18;
    st.global.u32 [%rd19], %r9;";

/// The value that `snippet` leaves in the one of `%rd9`, `%r9`, `%rs9`, `%p9` that it names, for each thread's inputs.
pub fn evaluate(snippet: &str, inputs: &[Inputs]) -> Vec<u64> {
    let mut body =
        "mov.u32 %r18, %tid.x; mul.wide.u32 %rd18, %r18, 32; add.s64 %rd17, %rd14, %rd18;\n".to_owned();
    for n in 1..5 {
        body += &format!(
            "ld.global.b64 %rd{n}, [%rd17+{}]; cvt.u32.u64 %r{n}, %rd{n}; cvt.u16.u64 %rs{n}, %rd{n};
            setp.ne.s64 %p{n}, %rd{n}, 0;\n",
            8 * (n - 1)
        );
    }
    body += snippet;
    body += match snippet {
        _ if snippet.contains("%rd9") => "",
        _ if snippet.contains("%r9") => "cvt.u64.u32 %rd9, %r9;",
        _ if snippet.contains("%rs9") => "cvt.u64.u16 %rd9, %rs9;",
        _ => "selp.b64 %rd9, 1, 0, %p9;",
    };
    body += "mul.wide.u32 %rd18, %r18, 8; add.s64 %rd19, %rd15, %rd18; st.global.b64 [%rd19], %rd9;";
    let module = Module::parse(&kernel(&body)).unwrap_or_else(|error| panic!("{snippet}: {error}"));
    let input = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let mut launch = launch(1, inputs.len() as u32, input, inputs.len() * 8);
    module.run(&mut launch, &Options::default()).unwrap_or_else(|fault| panic!("{snippet}: {fault}"));
    let output = launch.buffers[1].bytes.chunks_exact(8);
    output.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Checks snippets against what they must give for given inputs.
pub fn check(cases: &[(&str, &[(Inputs, u64)])]) {
    for (snippet, examples) in cases {
        let inputs: Vec<Inputs> = examples.iter().map(|(inputs, _)| *inputs).collect();
        for (found, (inputs, expected)) in evaluate(snippet, &inputs).into_iter().zip(*examples) {
            assert_eq!(found, *expected, "{snippet} of {inputs:#x?} gives {found:#x}, not {expected:#x}");
        }
    }
}

/// A snippet, and what it gives of its four inputs.
pub type Definition = (&'static str, fn(u64, u64, u64, u64) -> u64);

/// Checks snippets against functions, for all of some inputs.
pub fn check_functions(functions: &[Definition], inputs: &[Inputs]) {
    for (snippet, function) in functions {
        for (found, &[a, b, c, d]) in evaluate(snippet, inputs).into_iter().zip(inputs) {
            let expected = function(a, b, c, d);
            assert_eq!(
                found, expected,
                "{snippet} of {a:#x}, {b:#x}, {c:#x}, {d:#x} gives {found:#x}, not {expected:#x}"
            );
        }
    }
}
