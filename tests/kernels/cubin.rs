//! Reads what a cubin, an ELF file, says of its kernels.

/// A kernel's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of stack of a thread.
    pub stack: u32,
    /// Bytes of parameters.
    pub parameters: u32,
}

/// Attributes of `.nv.info`, by their numbers.
const FRAME_SIZE: u8 = 0x11;
const KPARAM_INFO: u8 = 0x17;
const CBANK_PARAM_SIZE: u8 = 0x19;
const REGCOUNT: u8 = 0x2f;

/// The kernels of a cubin, by name; or what is not as expected.
pub fn kernels(cubin: &[u8]) -> Result<Vec<Kernel>, String> {
    let elf = Elf::read(cubin)?;
    let symbols = elf.symbols()?;
    let global = attributes(elf.section(".nv.info")?.content)?;
    let of_symbol = |number: u8, kernel: &str| -> Option<u32> {
        global.iter().find_map(|(attribute, value)| {
            let symbol = u32_at(value, 0)? as usize;
            (*attribute == number && symbols.get(symbol)? == kernel).then(|| u32_at(value, 4))?
        })
    };
    let mut all = Vec::new();
    for section in &elf.sections {
        let Some(name) = section.name.strip_prefix(".text.") else { continue };
        let own = attributes(elf.section(&format!(".nv.info.{name}"))?.content)?;
        let number = |attribute: u8, at: usize| -> Option<u32> {
            let (_, value) = own.iter().find(|(found, _)| *found == attribute)?;
            Some(u16_at(value, at)?.into())
        };
        // In front of the one parameter is what aligns it.
        let parameters = number(CBANK_PARAM_SIZE, 0).map(|all| all - number(KPARAM_INFO, 6).unwrap_or(0));
        all.push(Kernel {
            name: name.to_owned(),
            registers: of_symbol(REGCOUNT, name).ok_or_else(|| format!("{name}: no count of registers"))?,
            stack: of_symbol(FRAME_SIZE, name).ok_or_else(|| format!("{name}: no size of the stack"))?,
            parameters: parameters.unwrap_or(0),
        });
    }
    all.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(all)
}

/// Number and value of each attribute of an info section.
fn attributes(mut info: &[u8]) -> Result<Vec<(u8, &[u8])>, String> {
    let mut all = Vec::new();
    while let [format, number, rest @ ..] = info {
        // 4: the value's size stands before it; else the value is in the two bytes.
        let (from, size) = match format {
            4 => (2, usize::from(u16_at(rest, 0).ok_or("a cut attribute")?)),
            1..=3 => (0, 2),
            other => return Err(format!("attribute {number:#x} of unknown format {other}")),
        };
        all.push((*number, rest.get(from..from + size).ok_or("a cut attribute")?));
        info = &rest[from + size..];
    }
    Ok(all)
}

struct Section<'a> {
    name: String,
    content: &'a [u8],
}

struct Elf<'a> {
    sections: Vec<Section<'a>>,
}

impl<'a> Elf<'a> {
    fn read(file: &'a [u8]) -> Result<Self, String> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return Err("no 64-bit little-endian ELF file".to_owned());
        }
        let header = |number: usize| -> Option<&[u8]> {
            let size = usize::from(u16_at(file, 0x3a)?);
            let at = usize_at(file, 0x28)? + number * size;
            file.get(at..at + size)
        };
        let content = |header: &[u8]| -> Option<&'a [u8]> {
            const NOBITS: u32 = 8;
            if u32_at(header, 4)? == NOBITS {
                return Some(&[]);
            }
            let at = usize_at(header, 0x18)?;
            file.get(at..at + usize_at(header, 0x20)?)
        };
        let read = || -> Option<Vec<Section<'a>>> {
            let names = content(header(u16_at(file, 0x3e)?.into())?)?;
            let mut sections = Vec::new();
            for number in 0..u16_at(file, 0x3c)?.into() {
                let header = header(number)?;
                let name = text_at(names, u32_at(header, 0)? as usize)?;
                sections.push(Section { name, content: content(header)? });
            }
            Some(sections)
        };
        Ok(Elf { sections: read().ok_or("a cut ELF file")? })
    }

    fn section(&self, name: &str) -> Result<&Section<'a>, String> {
        self.sections.iter().find(|section| section.name == name).ok_or_else(|| format!("no section {name}"))
    }

    /// Names of the symbols, in order.
    fn symbols(&self) -> Result<Vec<String>, String> {
        let names = self.section(".strtab")?.content;
        let symbol = |entry: &[u8]| text_at(names, u32_at(entry, 0)? as usize);
        let table = self.section(".symtab")?.content;
        table
            .chunks_exact(24)
            .map(symbol)
            .collect::<Option<_>>()
            .ok_or_else(|| "a cut table of symbols".to_owned())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?).try_into().ok()
}

fn text_at(bytes: &[u8], at: usize) -> Option<String> {
    let text = bytes.get(at..)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}
