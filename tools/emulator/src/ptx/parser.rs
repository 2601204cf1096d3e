//! Parses PTX text.

use super::error::ParseError;
use super::lexer::{Kind, Token, tokens};
use super::syntax::{Function, Item, Operand, Registers, Space, Statement, Text, Variable};
use super::types::Type;

type Result<T> = std::result::Result<T, ParseError>;

/// The deepest nesting of `{ … }` and of initialisers; more would be no compiler's output.
const DEEPEST: u32 = 64;
/// The largest variable and register count taken, so that a wrong number is no allocation of gigabytes.
const LARGEST: u64 = 1 << 28;

/// Parses a module.
pub(super) fn parse(text: &str) -> Result<Text> {
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, is_asm: false, depth: 0 };
    let mut module = Text::default();
    while parser.peek().is_some() {
        parser.top(&mut module)?;
    }
    Ok(module)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    is_asm: bool,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn peek_kind(&self, ahead: usize) -> Option<Kind> {
        self.tokens.get(self.at + ahead).map(|token| token.kind)
    }

    fn next(&mut self) -> Result<Token<'a>> {
        let token = self.peek().ok_or_else(|| {
            let line = self.tokens.last().map_or(1, |token| token.line);
            ParseError { line, token: String::new(), message: "the text ends too early".to_owned() }
        })?;
        self.at += 1;
        Ok(token)
    }

    fn refuse<T>(&self, token: Token<'_>, message: impl Into<String>) -> Result<T> {
        Err(ParseError { line: token.line, token: token.text.to_owned(), message: message.into() })
    }

    fn take(&mut self, symbol: char) -> bool {
        let is = self.peek_kind(0) == Some(Kind::Symbol(symbol));
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, symbol: char) -> Result<()> {
        let token = self.next()?;
        if token.kind == Kind::Symbol(symbol) {
            Ok(())
        } else {
            self.refuse(token, format!("expected `{symbol}`"))
        }
    }

    fn take_dotted(&mut self, name: &str) -> bool {
        let is = self.peek().is_some_and(|token| token.kind == Kind::Dotted && token.text == name);
        self.at += usize::from(is);
        is
    }

    fn word(&mut self) -> Result<&'a str> {
        let token = self.next()?;
        if token.kind == Kind::Word { Ok(token.text) } else { self.refuse(token, "expected a name") }
    }

    fn integer(&mut self) -> Result<u64> {
        let token = self.next()?;
        match token.kind {
            Kind::Integer(value) => Ok(value),
            _ => self.refuse(token, "expected an integer"),
        }
    }

    /// An integer below a limit that guards allocations.
    fn size(&mut self) -> Result<u64> {
        let token = self.peek();
        let value = self.integer()?;
        match token {
            Some(token) if value > LARGEST => self.refuse(token, "too large"),
            _ => Ok(value),
        }
    }

    fn skip_line(&mut self, line: u32) {
        while self.peek().is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }

    fn top(&mut self, module: &mut Text) -> Result<()> {
        let token = self.next()?;
        if matches!(token.kind, Kind::BeginAsm | Kind::EndAsm | Kind::Symbol(';')) {
            return Ok(());
        }
        if token.kind != Kind::Dotted {
            return self.refuse(token, "expected a directive");
        }
        match token.text {
            "version" | "target" | "address_size" | "file" | "loc" | "pragma" => self.skip_line(token.line),
            "section" => {
                while !self.take('{') {
                    self.next()?;
                }
                while !self.take('}') {
                    self.next()?;
                }
            }
            "visible" | "extern" | "weak" | "common" => {}
            "entry" => module.functions.push(self.function(token.line, true)?),
            "func" => module.functions.push(self.function(token.line, false)?),
            "global" => self.variables(Space::Global, &mut module.variables)?,
            "const" => self.variables(Space::Constant, &mut module.variables)?,
            "shared" => self.variables(Space::Shared, &mut module.variables)?,
            _ => return self.refuse(token, "unknown directive"),
        }
        Ok(())
    }

    fn function(&mut self, line: u32, is_kernel: bool) -> Result<Function> {
        let results = if !is_kernel && self.peek_kind(0) == Some(Kind::Symbol('(')) {
            self.parameters()?
        } else {
            Vec::new()
        };
        let name = self.word()?.to_owned();
        let parameters =
            if self.peek_kind(0) == Some(Kind::Symbol('(')) { self.parameters()? } else { Vec::new() };
        let (mut most_threads, mut exact_threads) = (None, None);
        let body = loop {
            if self.take(';') {
                break None;
            }
            if self.take('{') {
                break Some(self.body()?);
            }
            let token = self.next()?;
            match (token.kind, token.text) {
                (Kind::Dotted, "maxntid") => most_threads = Some(self.threads()?),
                (Kind::Dotted, "reqntid") => exact_threads = Some(self.threads()?),
                (Kind::Dotted, "minnctapersm" | "maxnreg" | "maxnctapersm") => {
                    self.integer()?;
                }
                (Kind::Dotted, "noreturn") => {}
                (Kind::Dotted, "pragma" | "loc") => self.skip_line(token.line),
                _ => return self.refuse(token, "expected a function's body"),
            }
        };
        Ok(Function { line, name, is_kernel, results, parameters, most_threads, exact_threads, body })
    }

    fn threads(&mut self) -> Result<[u32; 3]> {
        let mut sizes = [1; 3];
        for (number, size) in sizes.iter_mut().enumerate() {
            if number > 0 && !self.take(',') {
                break;
            }
            *size = self.size()? as u32;
        }
        Ok(sizes)
    }

    fn parameters(&mut self) -> Result<Vec<Variable>> {
        self.expect('(')?;
        let mut all = Vec::new();
        while !self.take(')') {
            if !all.is_empty() {
                self.expect(',')?;
            }
            let token = self.next()?;
            if (token.kind, token.text) != (Kind::Dotted, "param") {
                return self.refuse(token, "expected `.param`");
            }
            all.push(self.variable(Space::Parameter)?);
        }
        Ok(all)
    }

    /// Variables of one declaration, the space already read.
    fn variables(&mut self, space: Space, into: &mut Vec<Variable>) -> Result<()> {
        into.push(self.variable(space)?);
        self.expect(';')
    }

    fn variable(&mut self, space: Space) -> Result<Variable> {
        let (mut align, mut kind, mut elements) = (None, None, 1);
        while self.peek_kind(0) == Some(Kind::Dotted) {
            let token = self.next()?;
            match token.text {
                "align" => align = Some(self.size()? as u32),
                "ptr" | "global" | "shared" | "const" | "local" if space == Space::Parameter => {}
                "v2" => elements = 2,
                "v4" => elements = 4,
                name => match Type::of(name) {
                    Some(of) if of != Type::Pred => kind = Some(of),
                    _ => return self.refuse(token, "unknown type of a variable"),
                },
            }
        }
        let token = self.next()?;
        let Some(kind) = kind else { return self.refuse(token, "a variable without a type") };
        if token.kind != Kind::Word {
            return self.refuse(token, "expected a variable's name");
        }
        let element = u64::from(kind.bytes()) * elements;
        let mut bytes = Some(element);
        while self.take('[') {
            let count = if self.peek_kind(0) == Some(Kind::Symbol(']')) { None } else { Some(self.size()?) };
            self.expect(']')?;
            bytes = bytes.zip(count).map(|(bytes, count)| bytes.saturating_mul(count));
        }
        if bytes.is_some_and(|bytes| bytes > LARGEST) {
            return self.refuse(token, "too large a variable");
        }
        let align = align.unwrap_or(element as u32);
        if !align.is_power_of_two() {
            return self.refuse(token, "an alignment that is no power of two");
        }
        let mut content = Vec::new();
        if self.take('=') {
            self.initialiser(kind, &mut content, 0)?;
            if bytes.is_some_and(|bytes| content.len() as u64 > bytes) {
                return self.refuse(token, "more values than the variable holds");
            }
            bytes = bytes.or(Some(content.len() as u64));
        }
        Ok(Variable { line: token.line, name: token.text.to_owned(), space, align, bytes, content })
    }

    fn initialiser(&mut self, kind: Type, content: &mut Vec<u8>, depth: u32) -> Result<()> {
        let token = self.next()?;
        if token.kind == Kind::Symbol('{') {
            if depth > DEEPEST {
                return self.refuse(token, "nested too deeply");
            }
            while !self.take('}') {
                self.initialiser(kind, content, depth + 1)?;
                if !self.take(',') {
                    self.expect('}')?;
                    break;
                }
            }
            return Ok(());
        }
        let (negative, token) =
            if token.kind == Kind::Symbol('-') { (true, self.next()?) } else { (false, token) };
        let value = match token.kind {
            Kind::Integer(value) if kind == Type::F32 => (value as f32).to_bits().into(),
            Kind::Integer(value) if kind == Type::F64 => (value as f64).to_bits(),
            Kind::Integer(value) => value,
            Kind::Single(bits) if kind == Type::F64 => f64::from(f32::from_bits(bits)).to_bits(),
            Kind::Single(bits) => bits.into(),
            Kind::Double(value) if kind == Type::F32 => (value as f32).to_bits().into(),
            Kind::Double(value) => value.to_bits(),
            _ => return self.refuse(token, "initial values other than numbers are not known"),
        };
        let value = match (negative, kind.is_float()) {
            (false, _) => value,
            (true, false) => value.wrapping_neg(),
            (true, true) => value ^ 1 << (kind.bits() - 1),
        };
        content.extend_from_slice(&value.to_le_bytes()[..kind.bytes() as usize]);
        Ok(())
    }

    /// A function's body or a scope, its `{` already read.
    fn body(&mut self) -> Result<Vec<Item>> {
        self.depth += 1;
        let mut items = Vec::new();
        loop {
            let token = self.next()?;
            match token.kind {
                Kind::Symbol('}') => break,
                Kind::Symbol('{') if self.depth > DEEPEST => return self.refuse(token, "nested too deeply"),
                Kind::Symbol('{') => items.push(Item::Scope(self.body()?)),
                Kind::Symbol(';') => {}
                Kind::BeginAsm => self.is_asm = true,
                Kind::EndAsm => self.is_asm = false,
                Kind::Dotted => self.directive(token, &mut items)?,
                Kind::Word if self.peek_kind(0) == Some(Kind::Symbol(':')) => {
                    self.at += 1;
                    if self.take_dotted("branchtargets") {
                        let mut labels = vec![self.word()?.to_owned()];
                        while self.take(',') {
                            labels.push(self.word()?.to_owned());
                        }
                        self.expect(';')?;
                        items.push(Item::Targets { name: token.text.to_owned(), labels });
                    } else {
                        items.push(Item::Label { line: token.line, name: token.text.to_owned() });
                    }
                }
                Kind::Word | Kind::Symbol('@') => {
                    self.at -= 1;
                    items.push(Item::Statement(self.statement()?));
                }
                _ => return self.refuse(token, "expected an instruction"),
            }
        }
        self.depth -= 1;
        Ok(items)
    }

    fn directive(&mut self, token: Token<'a>, items: &mut Vec<Item>) -> Result<()> {
        let mut variables = Vec::new();
        match token.text {
            "loc" | "file" | "pragma" => self.skip_line(token.line),
            "reg" => self.registers(items)?,
            "shared" => self.variables(Space::Shared, &mut variables)?,
            "local" => self.variables(Space::Local, &mut variables)?,
            "param" => self.variables(Space::Parameter, &mut variables)?,
            "global" => self.variables(Space::Global, &mut variables)?,
            "const" => self.variables(Space::Constant, &mut variables)?,
            _ => return self.refuse(token, "unknown directive"),
        }
        items.extend(variables.into_iter().map(Item::Variable));
        Ok(())
    }

    fn registers(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let token = self.next()?;
        let kind = match token.kind {
            Kind::Dotted => Type::of(token.text),
            _ => None,
        };
        let Some(kind) = kind else { return self.refuse(token, "unknown type of a register") };
        loop {
            let name = self.word()?.to_owned();
            let count = if self.take('<') {
                let count = self.size()? as u32;
                self.expect('>')?;
                Some(count)
            } else {
                None
            };
            items.push(Item::Registers(Registers { name, count, kind }));
            if !self.take(',') {
                return self.expect(';');
            }
        }
    }

    fn statement(&mut self) -> Result<Statement> {
        let guard = if self.take('@') {
            let negated = self.take('!');
            Some((self.word()?.to_owned(), negated))
        } else {
            None
        };
        let first = self.at;
        let line = self.next()?.line;
        self.at = first;
        let opcode = self.word()?.to_owned();
        let mut modifiers = Vec::new();
        while self.peek_kind(0) == Some(Kind::Dotted) {
            modifiers.push(self.next()?.text.to_owned());
        }
        let mut operands = Vec::new();
        while !self.take(';') {
            if !operands.is_empty() {
                self.expect(',')?;
            }
            operands.push(self.operand(0)?);
        }
        let (text, pattern) = self.describe(first, self.at - 1);
        Ok(Statement { line, guard, opcode, modifiers, operands, text, pattern, is_asm: self.is_asm })
    }

    /// The text of some tokens, and with `%` for every register.
    fn describe(&self, first: usize, end: usize) -> (String, String) {
        let (mut text, mut pattern) = (String::new(), String::new());
        for (number, token) in self.tokens[first..end].iter().enumerate() {
            if number > 0 && token.start > self.tokens[first + number - 1].end {
                text.push(' ');
                pattern.push(' ');
            }
            let piece = &self.text[token.start..token.end];
            text.push_str(piece);
            let is_register = token.kind == Kind::Word && piece.starts_with('%');
            pattern.push_str(if is_register { "%" } else { piece });
        }
        (text, pattern)
    }

    fn operands(&mut self, close: char, depth: u32) -> Result<Vec<Operand>> {
        let mut all = Vec::new();
        while !self.take(close) {
            if !all.is_empty() {
                self.expect(',')?;
            }
            all.push(self.operand(depth + 1)?);
        }
        Ok(all)
    }

    fn operand(&mut self, depth: u32) -> Result<Operand> {
        let token = self.next()?;
        Ok(match token.kind {
            Kind::Symbol('{' | '(') if depth > 1 => return self.refuse(token, "nested too deeply"),
            Kind::Symbol('{') => Operand::Vector(self.operands('}', depth)?),
            Kind::Symbol('(') => Operand::Group(self.operands(')', depth)?),
            Kind::Symbol('[') => self.address()?,
            Kind::Symbol('-') => {
                let token = self.next()?;
                match token.kind {
                    Kind::Integer(value) => Operand::Integer(-i128::from(value)),
                    Kind::Single(bits) => Operand::Single(bits ^ 1 << 31),
                    Kind::Double(value) => Operand::Double(-value),
                    _ => return self.refuse(token, "expected a number"),
                }
            }
            Kind::Symbol('!') => Operand::Name { name: self.word()?.to_owned(), negated: true, offset: 0 },
            Kind::Integer(value) => Operand::Integer(value.into()),
            Kind::Single(bits) => Operand::Single(bits),
            Kind::Double(value) => Operand::Double(value),
            Kind::Word => {
                let mut name = token.text.to_owned();
                if self.peek_kind(0) == Some(Kind::Dotted) {
                    name = format!("{name}.{}", self.next()?.text);
                }
                if self.take('|') {
                    return Ok(Operand::Pair(name, self.word()?.to_owned()));
                }
                Operand::Name { name, negated: false, offset: self.offset()? }
            }
            _ => return self.refuse(token, "expected an operand"),
        })
    }

    /// What may follow a name: `+4`, `+-4`, `-4`.
    fn offset(&mut self) -> Result<i64> {
        let plus = self.take('+');
        let minus = self.take('-');
        if !plus && !minus {
            return Ok(0);
        }
        let value = self.integer()? as i64;
        Ok(if minus { value.wrapping_neg() } else { value })
    }

    fn address(&mut self) -> Result<Operand> {
        let (name, offset) = match self.peek_kind(0) {
            Some(Kind::Word) => (Some(self.word()?.to_owned()), self.offset()?),
            Some(Kind::Integer(_)) => (None, self.integer()? as i64),
            _ => {
                let token = self.next()?;
                return self.refuse(token, "expected an address");
            }
        };
        self.expect(']')?;
        Ok(Operand::Address { name, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 9.0\n.target sm_80\n.address_size 64\n";

    fn body(text: &str) -> Vec<Item> {
        let module = parse(&format!("{HEAD}.visible .entry k()\n{{\n{text}\n}}\n")).unwrap();
        module.functions.into_iter().next().unwrap().body.unwrap()
    }

    #[test]
    fn functions_and_variables() {
        let module = parse(&format!(
            "{HEAD}.extern .shared .align 128 .b8 dynamic[];
            .const .align 4 .f32 table[2][2] = {{{{0f3F800000, -1.5}}, {{2, 0}}}};
            .global .align 2 .u16 one = 0xffffU;
            .func (.param .b32 result) f(.param .b64 a, .param .align 8 .b8 b[24]);
            .visible .entry k(.param .align 8 .b8 p[72]) .maxntid 128, 1, 1 .minnctapersm 2 {{ ret; }}
            .section .debug_str {{ .b8 1,2 }}"
        ))
        .unwrap();
        let [dynamic, table, one] = &module.variables[..] else { panic!("{:?}", module.variables) };
        assert_eq!((dynamic.bytes, dynamic.align), (None, 128));
        assert_eq!(table.bytes, Some(16));
        let floats = [1.0f32, -1.5, 2.0, 0.0].map(f32::to_le_bytes).concat();
        assert_eq!(table.content, floats);
        assert_eq!(one.content, [0xff, 0xff]);
        let [f, k] = &module.functions[..] else { panic!() };
        assert!(f.body.is_none() && f.results.len() == 1 && f.parameters[1].bytes == Some(24));
        assert_eq!(k.most_threads, Some([128, 1, 1]));
        assert_eq!(k.body.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn statements() {
        let items = body(
            "@!%p1 bra $L__1;\nmov.u32 \t%r1, %tid.x;\n// begin inline asm\n{ .reg .pred q; setp.ne.u32 q|%p2, %r1, \
             -1; }\n// end inline asm\n$L__1: st.v2.b32 [%rd1+-8], {%r1, 0f3F800000};\nt: .branchtargets a, b;",
        );
        let Item::Statement(bra) = &items[0] else { panic!() };
        assert_eq!(bra.guard, Some(("%p1".to_owned(), true)));
        let Item::Statement(mov) = &items[1] else { panic!() };
        assert_eq!((mov.text.as_str(), mov.pattern.as_str()), ("mov.u32 %r1, %tid.x", "mov.u32 %, %.x"));
        let Item::Scope(scope) = &items[2] else { panic!() };
        let Item::Statement(setp) = &scope[1] else { panic!() };
        assert!(setp.is_asm && !mov.is_asm);
        assert_eq!(setp.operands[0], Operand::Pair("q".to_owned(), "%p2".to_owned()));
        assert_eq!(setp.operands[2], Operand::Integer(-1));
        let Item::Statement(st) = &items[4] else { panic!() };
        assert_eq!(st.operands[0], Operand::Address { name: Some("%rd1".to_owned()), offset: -8 });
        assert!(!st.is_asm && matches!(&st.operands[1], Operand::Vector(parts) if parts.len() == 2));
        assert!(matches!(&items[5], Item::Targets { labels, .. } if labels.len() == 2));
    }

    #[test]
    fn errors_name_line_and_token() {
        let cases = [
            (".bogus x;", 1, "bogus"),
            ("x;", 1, "x"),
            (".entry k()\n{ add.s32 %r1 %r2; }", 2, "%r2"),
            (".entry k()\n{\n ld.b32 %r1, [);\n}", 3, ")"),
            (".entry k()\n{ .reg .q32 %r<2>; }", 2, "q32"),
            (".global .align 3 .b8 x;", 1, "x"),
            (".global .b8 x[999999999999];", 1, "999999999999"),
            (".global .b8 x[1] = {1, 2};", 1, "x"),
            (".global .u64 x = y;", 1, "y"),
            (".entry k(", 1, ""),
            (".entry k()\n{ ret;", 2, ""),
            (".entry k() { @%p1 ; }", 1, ";"),
            (".entry k() { mov.u32 %r1, {{{1}}}; }", 1, "{"),
        ];
        for (text, line, token) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!((error.line, error.token.as_str()), (line, token), "{text}: {error}");
        }
        assert!(parse(&format!(".entry k() {}", "{".repeat(100_000))).is_err());
        assert!(parse(&format!(".global .b8 x[] = {}", "{".repeat(100_000))).is_err());
    }
}
