//! The budget: what each kernel takes of registers, stack and memory is what `resources.txt` says.
//!
//! Two sources have to agree: what ptxas said when it compiled, and what stands in the cubin.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{built, cubin};

/// A kernel and its architecture.
type Key = (String, String);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Resources {
    registers: u32,
    /// Bytes stored and loaded because registers did not suffice.
    spills: u32,
    stack: u32,
    shared: u32,
    parameters: u32,
}

/// The architectures of the table: those that are built where nothing else is asked for.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];

const HEADER: &str = "\
# What each kernel takes: registers of a thread, bytes of spills and stack of a thread, bytes of static shared memory,
# bytes of parameters. Written by: SETRANK_ACCEPT_RESOURCES=1 cargo test --features cuda --test kernels
";

fn table() -> PathBuf {
    built::root().join("tests/kernels/resources.txt")
}

/// The table's version of nvcc, and its rows.
fn parse_table(text: &str) -> (String, BTreeMap<Key, Resources>) {
    let version = text.lines().find_map(|line| line.strip_prefix("nvcc ")).unwrap_or("unknown");
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [kernel, architecture, numbers @ ..] = fields.as_slice() else { return None };
        let numbers = numbers.iter().map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>()?;
        let [registers, spills, stack, shared, parameters] = numbers[..] else { return None };
        let resources = Resources { registers, spills, stack, shared, parameters };
        Some((((*kernel).to_owned(), (*architecture).to_owned()), resources))
    };
    (version.to_owned(), text.lines().filter_map(row).collect())
}

fn print_table(version: &str, rows: &BTreeMap<Key, Resources>) -> String {
    let width = rows.keys().map(|(kernel, _)| kernel.len()).max().unwrap_or(0).max("kernel".len());
    let mut text = format!("{HEADER}\nnvcc {version}\n\n");
    let titles = ["registers", "spills", "stack", "shared", "parameters"].join("  ");
    writeln!(text, "{:width$}  architecture  {titles}", "kernel").expect("a string takes all");
    for ((kernel, architecture), of) in rows {
        let Resources { registers, spills, stack, shared, parameters } = of;
        let numbers = format!("{registers:9}  {spills:6}  {stack:5}  {shared:6}  {parameters:10}");
        writeln!(text, "{kernel:width$}  {architecture:12}  {numbers}").expect("a string takes all");
    }
    text
}

/// What ptxas said of each kernel, all but parameters.
fn parse_ptxas(text: &str) -> BTreeMap<Key, Resources> {
    let mut all: BTreeMap<Key, Resources> = BTreeMap::new();
    let mut current = None;
    let number = |part: &str| part.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap_or(0);
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mut quoted = rest.split('\'');
            let kernel = quoted.next().unwrap_or_default().to_owned();
            let architecture = quoted.nth(1).unwrap_or_default().to_owned();
            all.insert((kernel.clone(), architecture.clone()), Resources::default());
            current = Some((kernel, architecture));
        }
        let Some(of) = current.as_ref().and_then(|key| all.get_mut(key)) else { continue };
        let facts = line.rsplit_once(" : ").map_or(line, |(_, facts)| facts);
        for part in facts.split(',') {
            match part {
                part if part.contains("stack frame") => of.stack = number(part),
                part if part.contains("spill") => of.spills += number(part),
                part if part.contains("registers") => of.registers = number(part),
                part if part.contains("bytes smem") => of.shared = number(part),
                _ => {}
            }
        }
    }
    all
}

/// What was built, and where its two sources disagree.
fn built_rows() -> (BTreeMap<Key, Resources>, Vec<String>) {
    let mut rows = BTreeMap::new();
    let mut faults = Vec::new();
    for code in built::code() {
        let said = built::text(&Path::new(built::FOLDER).join(format!("{}.resources.txt", code.family)));
        let ptxas = parse_ptxas(&said);
        for cubin::Kernel { name, registers, stack, parameters } in code.kernels() {
            let key = (name, code.architecture.clone());
            // Shared memory and spills stand in no section of their own.
            let said = ptxas.get(&key).copied().unwrap_or_default();
            if (said.registers, said.stack) != (registers, stack) {
                faults.push(format!("{key:?}: the cubin has {registers} registers and {stack} bytes of stack, and ptxas said {said:?}"));
            }
            rows.insert(key, Resources { parameters, ..said });
        }
    }
    (rows, faults)
}

/// What is wrong with kernels whatever the table says.
fn forbidden(rows: &BTreeMap<Key, Resources>) -> Vec<String> {
    let mut faults = Vec::new();
    for ((kernel, architecture), of) in rows {
        for (what, bytes) in [("spills", of.spills), ("stack", of.stack), ("static shared memory", of.shared)]
        {
            if bytes != 0 {
                faults
                    .push(format!("{kernel}, {architecture}: {bytes} bytes of {what}, and it may have none"));
            }
        }
    }
    faults
}

/// Where what was built is not what the table says.
fn differences(table: &BTreeMap<Key, Resources>, built: &BTreeMap<Key, Resources>) -> Vec<String> {
    let keys: std::collections::BTreeSet<&Key> = table.keys().chain(built.keys()).collect();
    let differ = keys.into_iter().filter(|key| table.get(*key) != built.get(*key));
    differ
        .map(|key| {
            let shown = |of: Option<&Resources>| of.map_or("nothing".to_owned(), |of| format!("{of:?}"));
            let (kernel, architecture) = key;
            format!(
                "{kernel}, {architecture}: table {}, built {}",
                shown(table.get(key)),
                shown(built.get(key))
            )
        })
        .collect()
}

#[test]
fn kernels_take_what_the_table_says() {
    let (mut rows, mut faults) = built_rows();
    faults.extend(forbidden(&rows));
    assert!(faults.is_empty(), "{}", faults.join("\n"));

    let all = ARCHITECTURES.iter().all(|one| rows.is_empty() || rows.keys().any(|(_, of)| of == one));
    rows.retain(|(_, architecture), _| ARCHITECTURES.contains(&architecture.as_str()));
    let printed = print_table(built::NVCC, &rows);
    if env::var_os("SETRANK_ACCEPT_RESOURCES").is_some() {
        assert!(
            all,
            "build for {} to write the table: unset SETRANK_CUDA_ARCHS",
            ARCHITECTURES.join(" and ")
        );
        fs::write(table(), printed).expect("the table can be written");
        return;
    }
    let (version, mut expected) = parse_table(&built::text(&table()));
    if version != built::NVCC {
        let versions =
            format!("the table is of nvcc {version}, and the kernels were built by {}", built::NVCC);
        assert!(env::var_os("CI").is_none(), "{versions}: write it anew\n\n{printed}");
        println!("skipped: {versions}");
        return;
    }
    if !all {
        expected.retain(|(_, architecture), _| rows.keys().any(|(_, of)| of == architecture));
    }
    let differences = differences(&expected, &rows);
    assert!(
        differences.is_empty(),
        "kernels take other resources than tests/kernels/resources.txt says:\n{}\n\nIf that is meant, run it with \
         SETRANK_ACCEPT_RESOURCES=1, which writes this table, and say in the commit why:\n\n{printed}",
        differences.join("\n")
    );
}

const SAID: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 1040 bytes smem
";

#[test]
fn what_ptxas_says_is_read() {
    let first = Resources { registers: 40, ..Resources::default() };
    let second = Resources { registers: 255, spills: 24, stack: 24, shared: 1040, parameters: 0 };
    let key = |kernel: &str, architecture: &str| (kernel.to_owned(), architecture.to_owned());
    let expected = BTreeMap::from([(key("first", "sm_80"), first), (key("second", "sm_90a"), second)]);
    assert_eq!(parse_ptxas(SAID), expected);
    assert_eq!(forbidden(&expected).len(), 3, "spills, stack and static shared memory");
}

#[test]
fn the_table_is_read_as_it_is_written() {
    let rows = parse_ptxas(SAID);
    assert_eq!(parse_table(&print_table("13.0.88", &rows)), ("13.0.88".to_owned(), rows));
}

#[test]
fn a_difference_is_noticed() {
    let rows = parse_ptxas(SAID);
    assert!(differences(&rows, &rows).is_empty());
    let mut other = rows.clone();
    other.values_mut().next().expect("has rows").registers += 1;
    let last = other.pop_last().expect("has rows");
    assert_eq!(differences(&rows, &other).len(), 2, "another count, and {last:?} missing");
    assert_eq!(differences(&other, &rows).len(), 2);
}
