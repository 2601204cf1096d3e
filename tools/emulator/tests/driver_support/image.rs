//! Builds images of modules by hand, so that the tests need no nvcc.

/// A kernel of an image.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: &'static str,
    pub registers: u32,
    pub max_threads: Option<u32>,
    pub shared_bytes: u64,
    pub parameter_bytes: u16,
}

impl Kernel {
    /// A kernel with little needs.
    pub fn new(name: &'static str, parameter_bytes: usize) -> Self {
        let parameter_bytes = u16::try_from(parameter_bytes).expect("parameters are small");
        Self { name, registers: 32, max_threads: None, shared_bytes: 0, parameter_bytes }
    }
}

/// What is different about a cubin.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// 10 · major + minor.
    pub number: u32,
    /// Whether it is such as sm_90a.
    pub specific: bool,
}

pub fn sm(number: u32) -> Architecture {
    Architecture { number, specific: false }
}

pub fn sm_specific(number: u32) -> Architecture {
    Architecture { number, specific: true }
}

/// An entry of a fatbin.
pub struct Entry {
    kind: u16,
    architecture: u32,
    flags: u64,
    bytes: Vec<u8>,
}

impl Entry {
    pub fn cubin(architecture: Architecture, kernels: &[Kernel]) -> Self {
        Self { kind: 2, architecture: architecture.number, flags: 0x11, bytes: cubin(architecture, kernels) }
    }

    pub fn ptx(version: &str, target: &str, kernels: &[Kernel]) -> Self {
        let architecture =
            target.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("sm_ and a number");
        let mut bytes = ptx(version, target, kernels).into_bytes();
        bytes.push(0);
        Self { kind: 1, architecture, flags: 0x11, bytes }
    }

    /// Marks it as compressed with Zstandard.
    pub fn compressed(mut self) -> Self {
        self.flags |= 0x8000;
        self
    }
}

pub fn fatbin(entries: &[Entry]) -> Vec<u8> {
    let mut body = Vec::new();
    for entry in entries {
        let padded = entry.bytes.len().next_multiple_of(8);
        body.extend(entry.kind.to_le_bytes());
        body.extend(0x0101_u16.to_le_bytes());
        body.extend(64_u32.to_le_bytes());
        body.extend((padded as u64).to_le_bytes());
        body.extend([0; 8]);
        body.extend(0_u16.to_le_bytes());
        body.extend(9_u16.to_le_bytes());
        body.extend(entry.architecture.to_le_bytes());
        body.extend([0; 8]);
        body.extend(entry.flags.to_le_bytes());
        body.extend([0; 16]);
        body.extend(&entry.bytes);
        body.resize(body.len() + padded - entry.bytes.len(), 0);
    }
    let mut file = Vec::new();
    file.extend(0xba55_ed50_u32.to_le_bytes());
    file.extend(1_u16.to_le_bytes());
    file.extend(16_u16.to_le_bytes());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(body);
    file
}

pub fn ptx(version: &str, target: &str, kernels: &[Kernel]) -> String {
    let mut text =
        format!("//\n// Made by a test\n//\n.version {version}\n.target {target}\n.address_size 64\n");
    for kernel in kernels {
        let bounds =
            kernel.max_threads.map_or(String::new(), |threads| format!(".maxntid {threads}, 1, 1\n"));
        text += &format!(
            ".visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[{bytes}] // by value\n)\n{bounds}{{\n\tret;\n}}\n",
            name = kernel.name,
            bytes = kernel.parameter_bytes,
        );
    }
    text
}

/// An ELF file as ptxas makes it, as far as the driver reads it.
pub fn cubin(architecture: Architecture, kernels: &[Kernel]) -> Vec<u8> {
    let mut names = vec![0];
    let mut symbols = vec![0; 24];
    let mut info = Vec::new();
    let mut sections = vec![Section::default()];
    for (number, kernel) in kernels.iter().enumerate() {
        symbols.extend((names.len() as u32).to_le_bytes());
        names.extend(kernel.name.bytes());
        names.push(0);
        // A global function, marked as a kernel.
        symbols.extend([0x12, 0x10, 0, 0]);
        symbols.extend([0; 16]);

        let symbol = number as u32 + 1;
        attribute(&mut info, 0x2f, &[symbol, kernel.registers]);
        attribute(&mut info, 0x11, &[symbol, 0]);
        let mut own = Vec::new();
        own.extend([3, 0x19]);
        own.extend(kernel.parameter_bytes.to_le_bytes());
        // Of a format without a value, and one whose words look like other attributes.
        own.extend([1, 0x2a, 0, 0]);
        attribute(&mut own, 0x36, &[0x0001_1903, 0x0001_1903]);
        if let Some(threads) = kernel.max_threads {
            attribute(&mut own, 0x05, &[threads, 1, 1]);
        }
        sections.push(Section::new(format!(".text.{}", kernel.name), 1, vec![0; 128]));
        sections.push(Section::new(format!(".nv.info.{}", kernel.name), 0x7000_0000, own));
        // Kernels with none can have a section that is empty.
        if kernel.shared_bytes > 0 || architecture.number >= 90 {
            let mut shared = Section::new(format!(".nv.shared.{}", kernel.name), 8, Vec::new());
            // Behind what the driver keeps for itself from sm_90 on.
            shared.size = kernel.shared_bytes + if architecture.number >= 90 { 1024 } else { 0 };
            sections.push(shared);
        }
    }
    sections.push(Section::new(".nv.info".into(), 0x7000_0000, info));
    let compat = vec![2, 9, u8::from(architecture.specific), 0];
    sections.push(Section::new(".nv.compat".into(), 0x7000_0086, compat));
    let mut note = Vec::new();
    for word in [12_u32, 8, 1000] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"NVIDIA Corp\0");
    for half in [2, architecture.number as u16, 130, 0] {
        note.extend(half.to_le_bytes());
    }
    sections.push(Section::new(".note.nv.cuinfo".into(), 7, note));
    sections.push(Section::new(".strtab".into(), 3, names));
    let mut table = Section::new(".symtab".into(), 2, symbols);
    table.link = sections.len() as u32 - 1;
    sections.push(table);
    elf(architecture, sections)
}

#[derive(Default)]
struct Section {
    name: String,
    kind: u32,
    link: u32,
    size: u64,
    bytes: Vec<u8>,
}

impl Section {
    fn new(name: String, kind: u32, bytes: Vec<u8>) -> Self {
        Self { name, kind, link: 0, size: bytes.len() as u64, bytes }
    }
}

/// Adds an attribute of .nv.info that holds words.
fn attribute(info: &mut Vec<u8>, id: u8, words: &[u32]) {
    info.extend([4, id]);
    info.extend((4 * words.len() as u16).to_le_bytes());
    for word in words {
        info.extend(word.to_le_bytes());
    }
}

fn elf(architecture: Architecture, mut sections: Vec<Section>) -> Vec<u8> {
    let mut names = Vec::new();
    let mut places = Vec::new();
    sections.push(Section::new(".shstrtab".into(), 3, Vec::new()));
    for section in &sections {
        places.push(names.len() as u32);
        names.extend(section.name.bytes());
        names.push(0);
    }
    let last = sections.last_mut().expect("it was pushed");
    last.size = names.len() as u64;
    last.bytes = names;

    let mut content = Vec::new();
    let mut headers = Vec::new();
    for (section, place) in sections.iter().zip(&places) {
        content.resize(content.len().next_multiple_of(16), 0);
        headers.extend(place.to_le_bytes());
        headers.extend(section.kind.to_le_bytes());
        headers.extend([0; 16]);
        headers.extend((64 + content.len() as u64).to_le_bytes());
        headers.extend(section.size.to_le_bytes());
        headers.extend(section.link.to_le_bytes());
        headers.extend([0; 20]);
        content.extend(&section.bytes);
    }
    content.resize(content.len().next_multiple_of(8), 0);

    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0x41, 8, 0, 0, 0, 0, 0, 0, 0];
    file.extend(2_u16.to_le_bytes());
    file.extend(190_u16.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    file.extend([0; 16]);
    file.extend((64 + content.len() as u64).to_le_bytes());
    file.extend((0x0600_0004 | (architecture.number << 8)).to_le_bytes());
    for number in [64, 0, 0, 64, sections.len() as u16, sections.len() as u16 - 1] {
        file.extend(number.to_le_bytes());
    }
    file.extend(content);
    file.extend(headers);
    file
}
