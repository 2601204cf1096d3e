//! A look at the machine code: what `sass.txt` says of each kernel holds, and nothing touches local or generic memory.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::Command;

use crate::built;

/// What a kernel's code may and has to have.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// Name of the kernel; with a `*` at its end, of all that begin so.
    kernel: String,
    /// The matrix instructions that it has.
    matrix: Vec<String>,
    /// Other instructions that it has.
    others: Vec<String>,
    /// Accesses to global memory of less than 128 bits, such as `STG.32`, and how many of each it may have.
    narrow: BTreeMap<String, usize>,
}

impl Rule {
    fn matches(&self, kernel: &str) -> bool {
        match self.kernel.strip_suffix('*') {
            Some(beginning) => kernel.starts_with(beginning),
            None => kernel == self.kernel,
        }
    }
}

/// Matrix instructions: of a warp, and of a warpgroup.
const MATRIX: [&str; 2] = ["HMMA", "HGMMA"];

/// Other instructions that a kernel is to have: copies in the background, of a thread's 16 bytes and of boxes of matrices, and powers
/// of two.
const OTHERS: [&str; 3] = ["LDGSTS", "UTMALDG", "MUFU.EX2"];

/// Reads the table: kernel, matrix instruction, both as `HGMMA+HMMA` or `-`, others, narrow accesses as `STG.32:2`.
fn parse_rules(text: &str) -> Result<Vec<Rule>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rule = |line: &str| -> Option<Rule> {
        let mut fields = line.split_whitespace();
        let kernel = fields.next()?.to_owned();
        let matrix = match fields.next()? {
            "-" => Vec::new(),
            names if names.split('+').all(|name| MATRIX.contains(&name)) => {
                names.split('+').map(str::to_owned).collect()
            }
            _ => return None,
        };
        let access = |field: &str| -> Option<(String, usize)> {
            let (access, count) = field.split_once(':')?;
            Some((access.to_owned(), count.parse().ok()?))
        };
        let (others, narrow): (Vec<&str>, Vec<&str>) = fields.partition(|field| OTHERS.contains(field));
        let others = others.into_iter().map(str::to_owned).collect();
        Some(Rule { kernel, matrix, others, narrow: narrow.into_iter().map(access).collect::<Option<_>>()? })
    };
    lines
        .map(|line| rule(line).ok_or_else(|| format!("tests/kernels/sass.txt: cannot read `{line}`")))
        .collect()
}

/// An instruction without its predicate and operands: `LDG.E.128`.
type Instruction = String;

/// The instructions of each kernel, as nvdisasm prints them.
fn parse_sass(text: &str) -> BTreeMap<String, Vec<Instruction>> {
    let mut all: BTreeMap<String, Vec<Instruction>> = BTreeMap::new();
    let mut current = None;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix(".section\t") {
            current =
                section.split(',').next().and_then(|name| name.strip_prefix(".text.")).map(str::to_owned);
            continue;
        }
        let Some(kernel) = &current else { continue };
        let all = all.entry(kernel.clone()).or_default();
        // `/*0010*/   @!P0 LDG.E.128 R4, [R2] ;`: the address, then the instruction.
        let Some((_, code)) = line.strip_prefix("/*").and_then(|rest| rest.split_once("*/")) else {
            continue;
        };
        let code = code.trim_start().trim_start_matches('{').trim_start();
        let instruction = code.split_whitespace().find(|word| !word.starts_with('@'));
        all.extend(instruction.map(|word| word.trim_end_matches(';').to_owned()));
    }
    all
}

/// Bits of an access: `LDG.E.U16` 16, `LDG.E` 32, `LDGSTS.E.BYPASS.LTC128B.128` 128.
fn bits(instruction: &str) -> u32 {
    let mut bits = 32;
    for part in instruction.split('.') {
        match part {
            "U8" | "S8" => bits = 8,
            "U16" | "S16" => bits = 16,
            "64" => bits = 64,
            "128" => bits = 128,
            "256" => bits = 256,
            _ => {}
        }
    }
    bits
}

/// What is wrong with a kernel's code.
fn faults(rule: &Rule, code: &[Instruction]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut narrow: BTreeMap<String, usize> = BTreeMap::new();
    for instruction in code {
        let operation = instruction.split('.').next().unwrap_or_default();
        match operation {
            "LDL" | "STL" => {
                faults.push(format!("{instruction}: local memory, as spills and indexed arrays use it"))
            }
            "LD" | "ST" | "ATOM" => {
                faults.push(format!("{instruction}: generic memory; the pointer's space is lost"))
            }
            "LDG" | "STG" | "LDGSTS" if bits(instruction) < 128 => {
                *narrow.entry(format!("{operation}.{}", bits(instruction))).or_default() += 1;
            }
            "ATOMG" | "ATOMS" | "RED" | "REDG" if instruction.split('.').any(is_float) => {
                faults.push(format!("{instruction}: its result depends on the order of threads"));
            }
            _ => {}
        }
    }
    for (access, count) in narrow {
        let allowed = rule.narrow.get(&access).copied().unwrap_or(0);
        if count > allowed {
            faults.push(format!("{count} times {access}, and sass.txt allows {allowed}"));
        }
    }
    let is = |operation: &str, found: &str| {
        found.strip_prefix(operation).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let has = |operation: &str| code.iter().any(|found| is(operation, found));
    for other in rule.others.iter().filter(|other| !has(other)) {
        faults.push(format!("has no {other}, against sass.txt"));
    }
    for matrix in MATRIX {
        let has = has(matrix);
        if has != rule.matrix.iter().any(|of_rule| of_rule == matrix) {
            faults.push(format!("{} {matrix}, against sass.txt", if has { "has" } else { "has no" }));
        }
    }
    faults
}

fn is_float(part: &str) -> bool {
    ["F16", "F32", "F64", "BF16"].iter().any(|kind| part.starts_with(kind))
}

#[test]
fn machine_code_is_as_the_table_says() {
    let Some(nvdisasm) = built::tool("nvdisasm") else { return };
    let rules = parse_rules(&built::text(&built::root().join("tests/kernels/sass.txt")))
        .expect("the table can be read");
    let mut used = vec![false; rules.len()];
    let mut all = Vec::new();
    for code in built::code() {
        let sass = parse_sass(&disassemble(&nvdisasm, &code.cubin));
        let names: Vec<String> = code.kernels().into_iter().map(|kernel| kernel.name).collect();
        assert!(
            names.iter().eq(sass.keys()),
            "{}: kernels {names:?}, disassembled {:?}",
            code.family,
            sass.keys()
        );
        for (kernel, instructions) in sass {
            let place = format!("{kernel}, {}", code.architecture);
            assert!(instructions.iter().any(|one| one == "EXIT"), "{place}: the code was not understood");
            let Some(number) = rules.iter().position(|rule| rule.matches(&kernel)) else {
                all.push(format!("{place}: has no line in tests/kernels/sass.txt"));
                continue;
            };
            used[number] = true;
            let found = faults(&rules[number], &instructions);
            all.extend(found.iter().map(|fault| format!("{place}: {fault}")));
        }
    }
    // A build for some architectures only may lack kernels of the others.
    if env::var_os("SETRANK_CUDA_ARCHS").is_none() {
        let unused = rules.iter().zip(used).filter(|(_, used)| !used);
        all.extend(
            unused.map(|(rule, _)| format!("tests/kernels/sass.txt: there is no kernel {}", rule.kernel)),
        );
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

fn disassemble(nvdisasm: &Path, cubin: &Path) -> String {
    let output = Command::new(nvdisasm).arg("--print-code").arg(cubin).output().expect("nvdisasm runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nvdisasm {}: {said}", cubin.display());
    String::from_utf8(output.stdout).expect("nvdisasm prints text")
}

#[test]
fn fatbins_hold_all_code() {
    let Some(cuobjdump) = built::tool("cuobjdump") else { return };
    for fatbin in built::with_ending(Path::new(built::FOLDER), &["fatbin"]) {
        let output = Command::new(&cuobjdump).args(["--list-elf", "--list-ptx"]).arg(&fatbin).output();
        let listed =
            String::from_utf8(output.expect("cuobjdump runs").stdout).expect("cuobjdump prints text");
        let family = fatbin.file_stem().expect("has a name").to_string_lossy().into_owned();
        let code = built::code().into_iter().filter(|code| code.family == family);
        let mut expected: Vec<String> = code.map(|code| format!("{}.cubin", code.architecture)).collect();
        if !family.ends_with("_sm90") {
            expected.push("sm_80.ptx".to_owned());
        }
        let lines: Vec<&str> =
            listed.lines().filter(|line| line.ends_with(".cubin") || line.ends_with(".ptx")).collect();
        assert_eq!(lines.len(), expected.len(), "{}: {listed}", fatbin.display());
        for one in expected {
            assert!(
                lines.iter().any(|line| line.ends_with(&format!(".{one}"))),
                "{}: no {one}: {listed}",
                fatbin.display()
            );
        }
    }
}

const SASS: &str = "\
\t.headerflags\t@\"EF_CUDA_TEXMODE_UNIFIED\"
\t.section\t.nv.info.good,\"\",@\"SHT_CUDA_INFO\"
\t.section\t.text.good,\"ax\",@progbits
\t.sectioninfo\t@\"SHI_REGISTERS=22\"
.text.good:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0020*/                   LDGSTS.E.BYPASS.LTC128B.128.ZFILL [R3], [R4.64], P1 ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/               @P0 STG.E desc[UR4][R2.64], R4 ;
        /*0050*/                   EXIT ;
.L_x_0:
        /*0060*/                   BRA `(.L_x_0) ;
";

fn rule(line: &str) -> Rule {
    parse_rules(line).expect("a good line").remove(0)
}

#[test]
fn code_is_read_and_a_good_kernel_passes() {
    let all = parse_sass(SASS);
    let code = all.get("good").expect("its section is found");
    assert_eq!(code.len(), 7);
    assert_eq!(code[1], "LDG.E.128.CONSTANT");
    assert_eq!(code[5], "EXIT");
    assert_eq!(faults(&rule("good HMMA STG.32:1"), code), Vec::<String>::new());
    assert_eq!(faults(&rule("g* HMMA"), code).len(), 1, "a narrow store");
    assert_eq!(faults(&rule("good - STG.32:1"), code).len(), 1, "an HMMA");
    assert_eq!(faults(&rule("good HGMMA STG.32:1"), code).len(), 2, "HMMA, no HGMMA");
    assert_eq!(faults(&rule("good HMMA LDGSTS STG.32:1"), code), Vec::<String>::new());
    assert_eq!(faults(&rule("good HMMA UTMALDG STG.32:1"), code).len(), 1, "no UTMALDG");
    assert_eq!(faults(&rule("good HMMA MUFU.EX2 STG.32:1"), code).len(), 1, "no power of two");
    assert_eq!(faults(&rule("good HGMMA+HMMA STG.32:1"), code).len(), 1, "no HGMMA");
}

#[test]
fn planted_instructions_are_noticed() {
    let bad = [
        "LDL.LU",
        "STL.64",
        "LD.E.128",
        "ST.E",
        "ATOM.E.ADD",
        "LDG.E",
        "LDG.E.64",
        "LDG.E.U16.CONSTANT",
        "STG.E.U8",
        "LDGSTS.E",
        "LDGSTS.E.LTC128B.64",
        "RED.E.ADD.F32.FTZ.RN.STRONG.GPU",
        "ATOMG.E.ADD.BF16_V2.RN",
        "HMMA.16816.F32.BF16",
    ];
    for instruction in bad {
        assert_eq!(faults(&rule("any -"), &[instruction.to_owned()]).len(), 1, "{instruction}");
    }
    let good = [
        "LDG.E.128",
        "STG.E.128",
        "LDS.32",
        "STS",
        "LDSM.16.M88.4",
        "ATOMG.E.ADD.STRONG.GPU",
        "LDC",
        "UBLKCP.S.G",
    ];
    for instruction in good {
        assert_eq!(faults(&rule("any -"), &[instruction.to_owned()]), Vec::<String>::new(), "{instruction}");
    }
}

#[test]
fn a_wrong_table_is_refused() {
    for line in ["kernel", "kernel DMMA", "kernel HMMA+DMMA", "kernel HMMA STG.32", "kernel HMMA STG.32:few"]
    {
        assert!(parse_rules(line).is_err(), "{line}");
    }
    assert!(rule("set_* -").matches("set_attention"));
    assert!(!rule("set -").matches("set_attention"));
}
