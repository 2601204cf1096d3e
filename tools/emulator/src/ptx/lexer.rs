//! Splits PTX text into tokens.

use super::error::ParseError;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// A name, register names with their `%` included.
    Word,
    /// A name behind a dot; the token's text leaves the dot out.
    Dotted,
    /// An integer.
    Integer(u64),
    /// A number given as the bits of an f32, `0f3f800000`.
    Single(u32),
    /// A number given as the bits of an f64, `0d3ff0000000000000`, or in decimal.
    Double(f64),
    /// A text in quotes.
    Quoted,
    /// Punctuation.
    Symbol(char),
    /// The comment before an `asm` statement's text.
    BeginAsm,
    /// The comment behind an `asm` statement's text.
    EndAsm,
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// Line, from 1.
    pub line: u32,
    /// First byte, and the byte behind the last.
    pub start: usize,
    pub end: usize,
}

/// All tokens of a text.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < bytes.len() {
        let (start, first_line) = (at, line);
        let kind = match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            c if c.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = bytes[at..].iter().position(|&c| c == b'\n').map_or(bytes.len(), |n| at + n);
                match text[start + 2..at].trim() {
                    "begin inline asm" => Kind::BeginAsm,
                    "end inline asm" => Kind::EndAsm,
                    _ => continue,
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(length) = text[at..].find("*/") else {
                    return Err(error(line, "/*", "comment without an end"));
                };
                at += length + 2;
                line += text[start..at].matches('\n').count() as u32;
                continue;
            }
            b'"' => {
                let Some(length) = text[at + 1..].find('"') else {
                    return Err(error(line, "\"", "text without a closing quote"));
                };
                at += length + 2;
                line += text[start..at].matches('\n').count() as u32;
                Kind::Quoted
            }
            b'.' if bytes.get(at + 1).copied().is_some_and(is_word) => {
                at = word_end(bytes, at + 1);
                tokens.push(Token {
                    kind: Kind::Dotted,
                    text: &text[start + 1..at],
                    line: first_line,
                    start,
                    end: at,
                });
                continue;
            }
            c if c.is_ascii_digit() => {
                at = number_end(bytes, at);
                number(&text[start..at]).ok_or_else(|| error(line, &text[start..at], "not a number"))?
            }
            c if is_word(c) || c == b'%' => {
                at = word_end(bytes, at + 1);
                Kind::Word
            }
            c if c.is_ascii_punctuation() => {
                at += 1;
                Kind::Symbol(char::from(c))
            }
            _ => {
                let odd = text[at..].chars().next().map(String::from).unwrap_or_default();
                return Err(error(line, &odd, "not a character of PTX"));
            }
        };
        tokens.push(Token { kind, text: &text[start..at], line: first_line, start, end: at });
    }
    Ok(tokens)
}

fn error(line: u32, token: &str, message: &str) -> ParseError {
    ParseError { line, token: token.to_owned(), message: message.to_owned() }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c == b'$'
}

/// The end of a name; `::` may stand inside of it (`shared::cta`), a single colon ends it.
fn word_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        if at < bytes.len() && is_word(bytes[at]) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") && bytes.get(at + 2).copied().is_some_and(is_word) {
            at += 2;
        } else {
            return at;
        }
    }
}

fn number_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    let coded =
        bytes[start] == b'0' && matches!(bytes.get(start + 1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
    while at < bytes.len() {
        let sign = matches!(bytes[at], b'+' | b'-') && !coded && matches!(bytes[at - 1], b'e' | b'E');
        if !(bytes[at].is_ascii_alphanumeric() || bytes[at] == b'.' && !coded || sign) {
            break;
        }
        at += 1;
    }
    at
}

fn number(text: &str) -> Option<Kind> {
    let digits = text.strip_suffix(['U', 'u']).unwrap_or(text);
    let (head, tail) = digits.split_at(digits.len().min(2));
    match head {
        "0x" | "0X" => u64::from_str_radix(tail, 16).ok().map(Kind::Integer),
        "0b" | "0B" => u64::from_str_radix(tail, 2).ok().map(Kind::Integer),
        "0f" | "0F" if tail.len() == 8 => u32::from_str_radix(tail, 16).ok().map(Kind::Single),
        "0d" | "0D" if tail.len() == 16 => {
            u64::from_str_radix(tail, 16).ok().map(|bits| Kind::Double(f64::from_bits(bits)))
        }
        _ if digits.len() > 1 && digits.bytes().all(|c| c.is_ascii_digit()) && digits.starts_with('0') => {
            u64::from_str_radix(digits, 8).ok().map(Kind::Integer)
        }
        _ if digits.contains(['.', 'e', 'E']) => digits.parse().ok().map(Kind::Double),
        _ => digits.parse().ok().map(Kind::Integer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        tokens(text).unwrap().iter().map(|token| token.kind).collect()
    }

    #[test]
    fn numbers() {
        let integers =
            [("0", 0), ("17", 17), ("0x1f", 31), ("0xFFU", 255), ("010", 8), ("0b101", 5), ("3U", 3)];
        for (text, value) in integers {
            assert_eq!(kinds(text), [Kind::Integer(value)], "{text}");
        }
        assert_eq!(kinds("0f3F800000"), [Kind::Single(0x3f80_0000)]);
        assert_eq!(kinds("0d3FF8000000000000 1.5 15e-1 1.5e+0"), [Kind::Double(1.5); 4]);
        assert_eq!(kinds("1-2"), [Kind::Integer(1), Kind::Symbol('-'), Kind::Integer(2)]);
        for text in ["0f3f8000", "0xg", "12ab", "0d1", "99999999999999999999"] {
            assert_eq!(tokens(text).unwrap_err().token, text);
        }
    }

    #[test]
    fn names_and_lines() {
        let text = "ld.shared::cta.b32 %r1, [%rd2+-4]; // note\n/* a\nb */ $L__1: @!%p bra L;\n\"q\nr\" x";
        let all = tokens(text).unwrap();
        let texts: Vec<_> = all.iter().map(|token| token.text).collect();
        assert_eq!(texts[..4], ["ld", "shared::cta", "b32", "%r1"]);
        assert_eq!(all[1].kind, Kind::Dotted);
        let line_of = |word| all.iter().find(|token| token.text == word).unwrap().line;
        assert_eq!((line_of("%r1"), line_of("$L__1"), line_of("x")), (1, 3, 5));
    }

    #[test]
    fn asm_comments() {
        let text = "// begin inline asm\nx;\n\t// end inline asm\n// begin";
        assert_eq!(kinds(text), [Kind::BeginAsm, Kind::Word, Kind::Symbol(';'), Kind::EndAsm]);
    }

    #[test]
    fn bad_text() {
        for (text, line) in [("\n/* x", 2), ("a \"b", 1), ("\n\nä", 3)] {
            assert_eq!(tokens(text).unwrap_err().line, line, "{text:?}");
        }
    }
}
