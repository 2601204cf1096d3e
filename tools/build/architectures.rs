//! The GPU architectures that code is made for.

use std::fmt;

use super::error::Error;

/// What is built where `SETRANK_CUDA_ARCHS` says nothing.
pub const DEFAULT: &str = "80,90a";

/// An architecture as nvcc names it: 80, 90a.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Ten times the compute capability.
    pub number: u32,
    /// `a`: that architecture's own instructions, `f`: those of its family; else none.
    pub suffix: Option<char>,
}

impl fmt::Display for Architecture {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.number)?;
        self.suffix.map_or(Ok(()), |suffix| write!(to, "{suffix}"))
    }
}

/// Reads a list such as `80,90a`.
pub fn parse(list: &str) -> Result<Vec<Architecture>, Error> {
    let wrong = |why: String| Error::Architectures { list: list.to_owned(), why };
    let mut all = Vec::new();
    for item in list.split(',').map(str::trim) {
        let (digits, suffix) = match item.chars().last() {
            Some(last @ ('a' | 'f')) => (&item[..item.len() - 1], Some(last)),
            _ => (item, None),
        };
        let number = match digits.parse::<u32>() {
            Ok(number) if digits.bytes().all(|byte| byte.is_ascii_digit()) => number,
            _ => return Err(wrong(format!("\"{item}\" is no architecture."))),
        };
        if number < 80 {
            return Err(wrong(format!("{item} has no bf16; the kernels need 80 or newer.")));
        }
        let first = match suffix {
            None => 80,
            Some('a') => 90,
            Some(_) => 100,
        };
        if number < first {
            return Err(wrong(format!("{item} does not exist: the first of its kind is of {first}.")));
        }
        let architecture = Architecture { number, suffix };
        if all.contains(&architecture) {
            return Err(wrong(format!("{item} stands there twice.")));
        }
        all.push(architecture);
    }
    Ok(all)
}
